"""What a revision may be: asked for by name, recorded as what it resolved to, and never replaced by another we happen to hold."""

from __future__ import annotations

import re
from collections.abc import Collection

from pipeline.errors import SourceError
from pipeline.recipe import Fetch

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOVING = ("main", "master", "head", "latest", "default", "trunk")  # names of something else tomorrow
NAMED = 5  # revisions an error names


def is_commit(revision: str) -> bool:
    """Is it a full commit id (SHA-1 or SHA-256, lower-case hex)? Such a revision cannot move."""
    return COMMIT.fullmatch(revision) is not None


def require_pin(source: str, fetch: Fetch, *, production: bool) -> None:
    """Raises SourceError when a production run would take whatever is newest: a data set without `revision`.

    Addresses (https) and prefixes (s3) have no revision to state; their entity tags are recorded with every file.
    """
    if production and fetch.kind == "hub" and not fetch.revision:
        raise SourceError(
            f"source {source}: data set {fetch.dataset} is not pinned, and this is a production run (RUNVIEW_PRODUCTION=1); "
            "write fetch.revision: a commit, or a tag or branch whose commit is then recorded"
        )


def resolve(source: str, asked: str | None, *, remote: str | None, held: Collection[str] = (), production: bool = False) -> str:
    """The revision to fetch and to record.

    Args:
        asked: what the source file names; None or empty: whatever the remote's default is.
        remote: what the remote resolved it to now; None when it has no such revision.
        held: revisions there are copies of. They decide nothing; a refusal names them, so that nobody thinks they were overlooked.
    Raises: SourceError when nothing is asked for in a production run, when the remote has no such revision, when it answers a commit with
        another, and when it answers with a name instead of what the name stands for.
    """
    if not asked and production:
        raise SourceError(f"source {source}: no revision is asked for, and this is a production run; pin one")
    if not remote:
        names = sorted(held)
        copies = (
            f"copies of {names[:NAMED]}{' and others' if len(names) > NAMED else ''} are held and not used" if names else "no copy is held"
        )
        raise SourceError(
            f"source {source}: revision {asked or '(default)'!r} does not exist at the remote; {copies}: correct fetch.revision"
        )
    if asked and is_commit(asked) and remote != asked:
        raise SourceError(f"source {source}: commit {asked} was asked for, the remote answers with {remote}; nothing is fetched")
    if remote.lower() in MOVING or remote.startswith("refs/") or (remote == asked and not is_commit(remote)):
        raise SourceError(f"source {source}: revision {asked or '(default)'!r} resolved to {remote!r}, expected what the name stands for")
    return remote

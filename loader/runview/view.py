"""A run view opened for reading: manifest, order, catalogs and stats, each checked against its digest."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from runview import approval, canonical
from runview.errors import ApprovalError, IntegrityError, ManifestError, MissingFileError, WithdrawnError
from runview.fields import HEX64
from runview.manifest import Component, Continues, Manifest, parse
from runview.order import ORDER_VERSION, Located
from runview.shards import Catalog, Shard, read_stats
from runview.store import OpenShard, VerifiedFile, open_whole, read_file

Array = np.ndarray[Any, Any]


class Locator(Protocol):
    """What a loader needs of an order."""

    length: int

    def locate(self, positions: Array) -> Located: ...


@dataclass(frozen=True)
class ComponentFiles:
    """One component's catalog and stats; pack p of shard s has stats row first_pack[s] + p."""

    name: str
    catalog: Catalog
    stats: Array
    first_pack: Array

    @property
    def n_packs(self) -> int:
        return int(self.first_pack[-1])


class CatalogOrder:
    """The order of validation packs: one component, as they lie in catalog and index, once."""

    def __init__(self, files: ComponentFiles) -> None:
        self.length = files.n_packs
        self._first = files.first_pack

    def locate(self, positions: Array) -> Located:
        k = np.asarray(positions, np.int64)
        shard = np.searchsorted(self._first, k, side="right") - 1
        zero = np.zeros_like(k)
        return Located(zero, zero, zero, shard, k - self._first[shard])


@dataclass(frozen=True)
class Feed:
    """What a Loader reads: an order over packs, and the files that hold them.

    `schedule` is None for validation, where the loader's own global batch counts. `identity` is the view_id for
    training, and a digest of view_id and component for validation, so that their cursors cannot be confused.
    """

    identity: str
    root: Path
    manifest: Manifest
    order: Locator
    order_version: int
    components: tuple[ComponentFiles, ...]
    schedule: tuple[tuple[int, int], ...] | None
    tail_batch: str
    continues: tuple[Continues, ...]
    check_withdrawn: Callable[[], None]

    def open_shard(self, component: int, shard: int) -> OpenShard:
        """Open one shard with its pack index and check that its header belongs to this view."""
        files, manifest = self.components[component], self.manifest
        catalog = files.catalog
        data = VerifiedFile(
            self.root,
            "shards",
            catalog.shard_id[shard],
            size_bytes=int(catalog.size_bytes[shard]),
            blocks_sha256=catalog.shard_blocks_sha256[shard],
        )
        packs = VerifiedFile(
            self.root,
            "packs",
            catalog.pack_index_id[shard],
            size_bytes=None,
            blocks_sha256=catalog.pack_blocks_sha256[shard],
        )
        opened = OpenShard(data, packs, seq_len=manifest.seq_len, segment_multiple=manifest.packing.segment_multiple)
        check_header(opened.shard, manifest, files.name)
        for what, found, expected in (
            ("documents", opened.shard.n_docs, int(catalog.n_docs[shard])),
            ("tokens", opened.n_tokens, int(catalog.n_tokens[shard])),
            ("packs", opened.packs.n_packs, int(catalog.n_packs[shard])),
        ):
            if found != expected:
                raise IntegrityError(
                    f"{data.name}: {expected} {what} expected from the catalog, found {found}; "
                    "the catalog was not made from this file, publish the view again"
                )
        return opened


class RunView:
    """A published run view. Open with `RunView.open`; hand it, or `.validation(component)`, to a Loader.

    Attributes: manifest, view_id, root (the parent of `views/`), order, feed, approvals.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.manifest, self.view_id, self.path = manifest, manifest.view_id, path
        self.root = path.parent.parent
        self.approvals: tuple[approval.Verified, ...] = ()
        self.check_withdrawn()
        components = tuple(self._files(component) for component in manifest.components)
        self.order = manifest.order_of({files.name: files.catalog.n_packs.tolist() for files in components})
        self.feed = Feed(
            identity=self.view_id,
            root=self.root,
            manifest=manifest,
            order=self.order,
            order_version=ORDER_VERSION,
            components=components,
            tail_batch=manifest.tail_batch,
            continues=manifest.continues,
            schedule=tuple((b.from_position, b.global_batch) for b in manifest.batch_schedule),
            check_withdrawn=self.check_withdrawn,
        )

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        view_id: str | None = None,
        *,
        allowed_signers: str | PathLike[str] | None = None,
        quorum: int = 1,
    ) -> Self:
        """Open `<root>/views/<view_id>.json`, or a root with a view_id.

        With `allowed_signers`, at least `quorum` approvals by different keys must be in the view's record and valid.

        Raises: IntegrityError, when the file's digest is not its name, or a catalog or stats file has another digest;
        ManifestError, for a field, geometry or count that is wrong; MissingFileError; WithdrawnError; ApprovalError.
        Shards and pack indexes are checked when they are first read.
        """
        if "://" in str(path):
            raise MissingFileError(f"{path}: this version reads file systems only; copy or mount the lake's files")
        file = Path(path) / "views" / f"{view_id}.json" if view_id is not None else Path(path)
        if not HEX64.fullmatch(file.stem) or file.suffix != ".json" or file.absolute().parent.name != "views":
            raise ManifestError(
                f"{file}: a published view expected at views/<view_id>.json; candidates are not "
                "published, and a lake's root needs view_id=..."
            )
        manifest = parse_checked(file)
        view = cls(file, manifest)
        if allowed_signers is not None:
            view.approvals = view._verify_approvals(Path(allowed_signers), quorum)
        return view

    def validation(self, component: str) -> Feed:
        """The validation packs of one component, in catalog order, without shuffle; ValueError for an unknown name."""
        known = {entry.name: entry for entry in self.manifest.validation}
        if component not in known:
            raise ValueError(f"view {self.view_id} has no validation packs named {component!r}; known: {sorted(known)}")
        files = self._files(known[component])
        return Feed(
            identity=canonical.digest(["validation", self.view_id, component]),
            root=self.root,
            manifest=self.manifest,
            order=CatalogOrder(files),
            order_version=0,
            components=(files,),
            schedule=None,
            tail_batch="masked_pad",
            continues=(),
            check_withdrawn=self.check_withdrawn,
        )

    def check_withdrawn(self) -> None:
        """WithdrawnError when the view was withdrawn; MissingFileError when the store cannot answer that."""
        marker = self.path.with_suffix(".withdrawn.json")
        try:
            marker.lstat()
        except FileNotFoundError:
            try:
                self.path.stat()  # a store that lost the view itself has not answered
                return
            except OSError as error:
                raise MissingFileError(
                    f"{self.path}: cannot be asked whether the view is withdrawn ({error.strerror}); check that the lake is mounted"
                ) from error
        except OSError as error:
            raise MissingFileError(
                f"{marker}: cannot be asked whether the view is withdrawn ({error.strerror}); check that the lake is mounted"
            ) from error
        raise WithdrawnError(
            f"view {self.view_id} was withdrawn ({marker}); read the marker, then train on the view that "
            "succeeds it, which continues this view's cursors after an erasure"
        )

    def _files(self, component: Component) -> ComponentFiles:
        buffer, name = open_whole(self.root, "catalogs", component.catalog)
        catalog = Catalog(buffer, name=name)
        buffer, name = open_whole(self.root, "stats", component.stats)
        stats = read_stats(buffer, name=name)
        loss = int(stats[:, 1].sum(dtype=np.int64))
        sums = {
            "n_docs": int(catalog.n_docs.sum()),
            "n_tokens": int(catalog.n_tokens.sum()),
            "n_packs": int(catalog.n_packs.sum()),
            "n_loss_tokens": loss // 1000,
        }
        for key, found in sums.items():
            if found != getattr(component, key):
                raise ManifestError(
                    f"view {self.view_id}: component {component.name!r} declares {key} "
                    f"{getattr(component, key)}, its catalog and stats hold {found}; publish the view again"
                )
        if len(stats) != sums["n_packs"] or loss % 1000 or (stats[:, 1] % 1000).any():
            raise ManifestError(
                f"view {self.view_id}: stats {component.stats} of component {component.name!r} must have "
                f"{sums['n_packs']} rows of whole label weights, found {len(stats)} rows"
            )
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(catalog.n_packs)])
        return ComponentFiles(component.name, catalog, stats, first)

    def _verify_approvals(self, allowed_signers: Path, quorum: int) -> tuple[approval.Verified, ...]:
        allowed = approval.parse_allowed_signers(read_file(allowed_signers).decode("utf-8"))
        record = self.path.with_suffix(".record.json")
        try:
            listed = json.loads(read_file(record))["approvals"]
            pairs = [(base64.b64decode(item["document"], validate=True), str(item["signature"])) for item in listed]
        except (ValueError, KeyError, TypeError) as error:
            raise ApprovalError(
                f"{record}: a list `approvals` of document and signature expected "
                f"({type(error).__name__}); sign the view and publish it again"
            ) from error
        verified = tuple(
            approval.verify_publication(document, signature, view_id=self.view_id, allowed=allowed) for document, signature in pairs
        )
        if len({item.fingerprint for item in verified}) < quorum:
            raise ApprovalError(
                f"view {self.view_id}: {quorum} approvals by different keys needed, found "
                f"{len({item.fingerprint for item in verified})} in {record}"
            )
        return verified


def parse_checked(file: Path) -> Manifest:
    """The manifest at `<view_id>.json`; IntegrityError when its digest is not its name."""
    manifest_bytes = read_file(file)
    found = canonical.sha256_hex(manifest_bytes)
    if found != file.stem:
        raise IntegrityError(
            f"{file}: sha256 {file.stem} expected from its name, found {found}; "
            "the manifest was changed after publication, restore it or publish a new view"
        )
    return parse(manifest_bytes)


def check_header(shard: Shard, manifest: Manifest, component: str) -> None:
    """IntegrityError unless a shard's header carries the view's tokenizer and the component's name."""
    tokenizer = manifest.tokenizer
    expected = {
        "tokenizer_id": tokenizer.tokenizer_id,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "pad": tokenizer.pad,
        "fill_id": tokenizer.fill_id,
        "component": component,
    }
    for field, value in expected.items():
        if getattr(shard.header, field) != value:
            raise IntegrityError(
                f"{shard.name}: header field {field!r} is {getattr(shard.header, field)!r}, the view expects "
                f"{value!r}; the shard belongs to another tokenizer or component"
            )

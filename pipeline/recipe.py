"""Recipes, sources and releases: TOML files that say what changes output bytes.

Decimals are read exactly and written as strings, so a recipe part has one canonical JSON. An unknown key is an error that
names the nearest known one. Where and how fast things run (paths, credentials, workers) is not in here.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from pipeline.errors import RecipeError
from pipeline.ids import digest, sha256_hex
from pipeline.urls import credential_in, shown

T = typing.TypeVar("T")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
KINDS = ("prose", "code", "math", "chat")
NOT_IN_SOURCE_ID = ("location", "dated", "expect_every_hours", "max_incomplete_files", "fetch")  # what changes bytes of `fetch` is added
COMPLETE_MARKER = "_SUCCESS"  # what Hadoop and Spark write last into a folder; senders that know the convention end with it


@dataclass(frozen=True)
class Fetch:
    """`[fetch]` of a source file: where its files come from. It stands in place of `location`: they land in the lake.

    Names that change bytes (urls, index, url, dataset, revision, include) are in the source's identity; limits and `respect_robots` only
    refuse and are not. Retries, timeouts, endpoints and credentials come from the environment.

    Attributes:
        urls: of `https`: one file each. `index`: instead of them, a text file (also .gz) with one URL a line, relative ones to itself.
        url: of `s3`: `s3://bucket/prefix`; every object below it.
        dataset, revision: of `hub`: `org/name`, and a commit, tag or branch. What it resolved to is recorded, never the name; without
            `revision` it is the default branch, which production runs refuse.
        include: of `s3` and `hub`: glob patterns on the path below the prefix or in the data set, as in `Source.include`.
        max_bytes, max_files: of one snapshot; what would pass them is refused, not cut.
        respect_robots: of `https`: refuse a URL that its host's robots.txt disallows.
    """

    kind: Literal["https", "s3", "hub"]
    urls: tuple[str, ...] = ()
    index: str = ""
    url: str = ""
    dataset: str = ""
    revision: str = ""
    include: tuple[str, ...] = ("**/*",)
    max_bytes: int = 64 * 2**30
    max_files: int = 10_000
    respect_robots: bool = True

    def identity(self) -> dict[str, Any]:
        """What changes bytes, as plain JSON: the keys of this kind."""
        return {"kind": self.kind, **{name: to_json(getattr(self, name)) for name in FETCH_KEYS[self.kind]}}


FETCH_KEYS = {"https": ("urls", "index"), "s3": ("url", "include"), "hub": ("dataset", "revision", "include")}
DATASET = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Source:
    """`sources/<name>.toml`: what is collected and how its files are read. `location` is where, and enters no id.

    Attributes:
        reader: `tree` (one document per file), `jsonl`, `parquet`, `text` (one file or one line per document) or
            `python_environment` (files that installed packages list with a hash).
        location: folder or file, relative to the source file; for `python_environment` empty (the running environment).
        include, exclude: glob patterns on the path relative to `location`.
        licence: SPDX expression of everything in the source, or `unknown`; `licence_field` reads it per record.
        fields: which record fields hold the text (`text = ["title", "body"]`, joined by a blank line) or `messages`.
        kind: declared content kind; without it the kind is decided per document.
        split_lines: for `text`: one document per line.
        packages, select: for `python_environment`: distribution names, and `code` or `prose`.
        max_incomplete_files: how many broken files the snapshot may have and still count as done.
        deletion_key_fields: record fields whose keyed hash lets a person ask for deletion.
        dated: `location` is an inbox whose immediate folders are dates (`2026-11-01`); a snapshot reads the folder of its date.
        expect_every_hours: longest time between two snapshots before the source counts as late; 0: nothing is expected.
        fetch: where the files come from, in place of `location`.
    """

    name: str
    reader: Literal["tree", "jsonl", "parquet", "text", "python_environment"]
    consent_basis: str
    licence: str = "unknown"
    licence_field: str = ""
    location: str = ""
    include: tuple[str, ...] = ("**/*",)
    exclude: tuple[str, ...] = ()
    snapshot: date | None = None
    purpose: Literal["pretrain", "sft"] = "pretrain"
    kind: Literal["", "prose", "code", "math", "chat"] = ""
    domain: str = "general"
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    split_lines: bool = False
    charset: str = ""
    packages: tuple[str, ...] = ()
    select: Literal["", "code", "prose"] = ""
    max_incomplete_files: int = 0
    max_payload_bytes: int = 64 * 2**20
    deletion_key_fields: tuple[str, ...] = ()
    fetch: Fetch | None = None
    dated: bool = False
    expect_every_hours: int = 0

    def identity(self) -> dict[str, Any]:
        """The source file as plain JSON, without what decides no byte: place and times of arrival, and `max_incomplete_files`."""
        plain = to_json(self)
        kept = {key: value for key, value in plain.items() if key not in NOT_IN_SOURCE_ID}
        return kept if self.fetch is None else {**kept, "fetch": self.fetch.identity()}

    def at(self, snapshot: date) -> Source:
        """The source as its files are found for a date: of an inbox, the folder of that date without the sender's marker."""
        if not self.dated:
            return self
        location = f"{self.location.rstrip('/')}/{snapshot.isoformat()}"
        return dataclasses.replace(self, location=location, exclude=(*self.exclude, COMPLETE_MARKER), dated=False)


@dataclass(frozen=True)
class Member:
    """Dates of one source that a release judges."""

    source: str
    dates: tuple[date, ...]


@dataclass(frozen=True)
class Release:
    """`releases/<name>.toml`: a named set of source snapshots judged together."""

    name: str
    recipe: str
    members: tuple[Member, ...]
    view: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Language:
    """Language identification. Below `min_chars` letters or `min_score` the answer is `und`, never the best guess."""

    min_chars: int
    min_score: Decimal
    accept: tuple[str, ...]
    max_chars: int = 4000


@dataclass(frozen=True)
class Rule:
    """One quality rule: its sense is in its name (`min_…`, `max_…`); outside its domain it is not applicable.

    Attributes:
        name: unique; starts with `min_` or `max_`.
        metric: attribute it reads.
        bound: inclusive bound: a document fails below a minimum or above a maximum.
        kinds, languages: its domain; empty languages means all.
    """

    name: str
    metric: str
    bound: Decimal
    kinds: tuple[str, ...]
    languages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cleaning:
    """Everything that decides the text and the local decision of a document."""

    language: Language
    rules: tuple[Rule, ...]
    allowed_licences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Duplicates:
    """Exact duplicates over a release; survivors by an explicit, total priority."""

    exact: bool = True
    priority: tuple[str, ...] = ("longest", "earliest", "doc_id")


@dataclass(frozen=True)
class Split:
    """Seeded hash of the cluster decides the split."""

    seed: str
    validation_share: Decimal


@dataclass(frozen=True)
class Decisions:
    """Which category of reason is the primary one, first to last."""

    priority: tuple[str, ...]


@dataclass(frozen=True)
class Component:
    """Unit of the mixture: the documents a predicate selects. Empty lists select all; every kept document is in exactly one."""

    name: str
    sources: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    window: int = 64
    max_epochs: Decimal = Decimal(1)


@dataclass(frozen=True)
class Tokenization:
    """`tokenizer` names a tokenizer of the project (`runview-bpe-8k`) or a directory known to the tokenizer resource."""

    tokenizer: str
    begin_token: bool = False
    end_token: bool = True


@dataclass(frozen=True)
class Packing:
    """How documents become sequences. `min_fill`: a component whose packs hold a smaller share of tokens is refused."""

    policy: Literal["concat", "best_fit"]
    seq_len: int
    seed: str
    segment_multiple: int = 1
    tail_pack: Literal["drop", "masked_pad"] = "masked_pad"
    min_fill: Decimal = Decimal("0.5")
    shard_target_bytes: int = 128 * 2**20


@dataclass(frozen=True)
class StageSpec:
    """One stage of a run: `shares` in tokens with a `budget_tokens`, or `epochs` over everything."""

    name: str
    shares: dict[str, Decimal] = field(default_factory=dict)
    budget_tokens: int = 0
    epochs: Decimal = Decimal(0)


@dataclass(frozen=True)
class View:
    """What the run view says beyond the shards. Its name is the release's, so that releases can share a recipe."""

    seed: str
    global_batch: int
    stages: tuple[StageSpec, ...]
    name: str = ""
    attention: Literal["intra_document", "full"] = "intra_document"
    label_policy: Literal["all"] = "all"
    loss_normalisation: Literal["token", "sample"] = "token"
    tail_batch: Literal["drop", "masked_pad"] = "drop"


@dataclass(frozen=True)
class Recipe:
    """`pipeline/recipes/<name>.toml`: the values that change output bytes."""

    name: str
    cleaning: Cleaning
    duplicates: Duplicates
    split: Split
    decisions: Decisions
    tokenization: Tokenization
    packing: Packing
    components: tuple[Component, ...]
    view: View
    text: str = ""

    @property
    def recipe_id(self) -> str:
        """Identity of the values. Comments, layout of the file and the name of the view do not enter it."""
        plain = {key: value for key, value in to_json(self).items() if key != "text"}
        return digest("recipe", {**plain, "view": {key: value for key, value in plain["view"].items() if key != "name"}})

    def named(self, view: str) -> Recipe:
        """The same recipe for a run view of this name."""
        return dataclasses.replace(self, view=dataclasses.replace(self.view, name=view))

    @property
    def text_sha256(self) -> str:
        """sha256 of the file's text."""
        return sha256_hex(self.text.encode())


def to_json(value: Any) -> Any:
    """Plain JSON of a recipe part: decimals as shortest strings, dates as ISO text, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Decimal):
        return format(value.normalize(), "f") if value else "0"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def parse_source(text: str, *, where: str) -> Source:
    """Source from TOML text. Raises RecipeError naming file, key and what to write instead."""
    source = _parse(Source, text, where)
    _check_name(source.name, where)
    if source.reader == "python_environment":
        if not source.packages or not source.select:
            raise RecipeError(f"{where}: reader python_environment needs `packages` and `select` (code or prose)")
        if source.fetch:
            raise RecipeError(f"{where}: reader python_environment reads installed packages; leave out [fetch]")
    elif source.fetch:
        if source.location:
            raise RecipeError(f"{where}: `location` is not written beside [fetch]; fetched files have their place in the lake")
        _check_fetch(source.fetch, where)
    elif not source.location:
        raise RecipeError(f"{where}: reader {source.reader} needs `location`, a folder or file relative to this file, or [fetch]")
    if source.dated and (not source.location or source.snapshot is not None):
        raise RecipeError(f"{where}: dated = true needs a `location` of dated folders and no `snapshot`; the folders say the dates")
    if source.expect_every_hours < 0:
        raise RecipeError(f"{where}: expect_every_hours must be 0 (nothing is expected) or more, found {source.expect_every_hours}")
    unknown = sorted(set(source.fields) - {"text", "messages", "id", "url", "collected_at", "meta"})
    if unknown:
        raise RecipeError(f"{where}: fields.{unknown[0]} is not known; expected text, messages, id, url, collected_at, meta")
    if source.reader in ("jsonl", "parquet") and not (source.fields.get("text") or source.fields.get("messages")):
        raise RecipeError(f"{where}: reader {source.reader} needs fields.text or fields.messages (which columns hold the text)")
    return source


def _check_fetch(fetch: Fetch, where: str) -> None:
    """Raises RecipeError when keys are of another kind, missing or wrong, or when an address holds a credential."""
    plain = Fetch(fetch.kind)
    for name in sorted({name for names in FETCH_KEYS.values() for name in names} - set(FETCH_KEYS[fetch.kind])):
        if getattr(fetch, name) != getattr(plain, name):
            raise RecipeError(f"{where}: fetch.{name} is no key of kind {fetch.kind}; expected {list(FETCH_KEYS[fetch.kind])}")
    if fetch.kind == "https":
        if bool(fetch.urls) == bool(fetch.index):
            raise RecipeError(f"{where}: [fetch] of kind https needs either `urls` or `index`")
        _check_unique(list(fetch.urls), "fetch.urls", where)
    elif not (fetch.url if fetch.kind == "s3" else fetch.dataset):
        raise RecipeError(f"{where}: [fetch] of kind {fetch.kind} needs `{'url' if fetch.kind == 's3' else 'dataset'}`")
    elif not fetch.include:
        raise RecipeError(f"{where}: fetch.include is empty; leave it out to fetch everything")
    if fetch.dataset and not DATASET.fullmatch(fetch.dataset):
        raise RecipeError(f"{where}: fetch.dataset must be org/name, found {fetch.dataset!r}")
    if re.search(r"\s", fetch.revision):
        raise RecipeError(f"{where}: fetch.revision must be a commit, tag or branch, found blanks in it")
    for url in (*fetch.urls, fetch.index, fetch.url):
        if not url:
            continue
        # http is only let through here: the adapter refuses it unless the environment allows it, for mirrors on a private network
        schemes = ("s3://",) if fetch.kind == "s3" else ("https://", "http://")
        if not url.startswith(schemes) or not re.fullmatch(r"[a-z0-9]+://[^/?#\s]+[^#\s]*", url):
            raise RecipeError(f"{where}: {shown(url)!r} must be an address like {schemes[0]}name/path, without blanks and #")
        if found := credential_in(url):
            raise RecipeError(
                f"{where}: {shown(url)} holds what looks like a credential ({found}), which would be kept with every snapshot; "
                "credentials are given by the environment (NETRC, AWS_*, HF_TOKEN)"
            )
    for name in ("max_bytes", "max_files"):
        if getattr(fetch, name) < 1:
            raise RecipeError(f"{where}: fetch.{name} must be at least 1, found {getattr(fetch, name)}")


def parse_release(text: str, *, where: str) -> Release:
    """Release from TOML text. Raises RecipeError."""
    release = _parse(Release, text, where)
    _check_name(release.name, where)
    if release.view:
        _check_name(release.view, where)
    if not release.members or any(not member.dates for member in release.members):
        raise RecipeError(f"{where}: a release needs at least one member with at least one date")
    pairs = [(m.source, d) for m in release.members for d in m.dates]
    if len(set(pairs)) != len(pairs):
        raise RecipeError(f"{where}: a source and date stand twice among the members")
    return release


def parse_recipe(text: str, *, where: str) -> Recipe:
    """Recipe from TOML text. Raises RecipeError."""
    recipe = dataclasses.replace(_parse(Recipe, text, where), text=text)
    _check_name(recipe.name, where)
    for rule in recipe.cleaning.rules:
        if not rule.name.startswith(("min_", "max_")):
            raise RecipeError(f"{where}: rule {rule.name!r} must start with min_ or max_, so that its sense is in its name")
        if not rule.kinds or set(rule.kinds) - set(KINDS):
            raise RecipeError(f"{where}: rule {rule.name!r} needs its domain: kinds out of {list(KINDS)}, found {list(rule.kinds)}")
    _check_unique([r.name for r in recipe.cleaning.rules], "rule", where)
    _check_unique([c.name for c in recipe.components], "component", where)
    _check_unique([s.name for s in recipe.view.stages], "stage", where)
    for component in recipe.components:
        _check_name(component.name, where)
    names = [component.name for component in recipe.components]
    for stage in recipe.view.stages:
        for name in stage.shares:
            if name not in names:
                raise RecipeError(f"{where}: stage {stage.name!r} gives a share to {name!r}{_nearest(name, names)}")
        if bool(stage.shares) == bool(stage.epochs):
            raise RecipeError(f"{where}: stage {stage.name!r} needs either `shares` with `budget_tokens`, or `epochs`")
        if stage.shares and sum(stage.shares.values()) != 1:
            raise RecipeError(f"{where}: shares of stage {stage.name!r} sum to {sum(stage.shares.values())}, expected 1")
        if stage.shares and stage.budget_tokens <= 0:
            raise RecipeError(f"{where}: stage {stage.name!r} with shares needs budget_tokens > 0")
    for name, seed in (("split.seed", recipe.split.seed), ("packing.seed", recipe.packing.seed), ("view.seed", recipe.view.seed)):
        if not re.fullmatch(r"[0-9a-f]{2,64}", seed):
            raise RecipeError(f"{where}: {name} must be lower-case hex of 2 to 64 digits, found {seed!r}")
    return recipe


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        raise RecipeError(f"{where}: name {name!r} must match [a-z0-9][a-z0-9._-]*")
    if re.fullmatch("[0-9a-f]{64}", name):
        raise RecipeError(f"{where}: name {name!r} looks like an id; choose a word, so that nobody approves one for the other")


def _check_unique(names: list[str], what: str, where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: {what} {twice[0]!r} stands twice")


def _parse(cls: type[T], text: str, where: str) -> T:
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where}: not valid TOML: {error}") from error
    parsed = _build(cls, raw, where, "")
    assert isinstance(parsed, cls)  # for the type checker: _build makes what it is asked for
    return parsed


def _nearest(key: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}"


def _build(cls: Any, raw: Any, where: str, path: str) -> Any:
    if not isinstance(raw, dict):
        raise RecipeError(f"{where}: {path or 'file'} must be a table, found {type(raw).__name__}")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if not (cls is Recipe and f.name == "text")}
    for key in raw:
        if key not in known:
            raise RecipeError(f"{where}: unknown key {path + key!r}{_nearest(key, known)}")
    values = {}
    for name, spec in known.items():
        if name in raw:
            values[name] = _value(hints[name], raw[name], where, path + name)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise RecipeError(f"{where}: missing key {path + name!r}")
    return cls(**values)


def _value(kind: Any, raw: Any, where: str, path: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build(kind, raw, where, path + ".")
    if origin is Literal:
        if raw not in args:
            raise RecipeError(f"{where}: {path} = {raw!r} is not known{_nearest(str(raw), [str(a) for a in args if a])}")
        return raw
    if origin in (typing.Union, types.UnionType):
        return _value(next(a for a in args if a is not type(None)), raw, where, path)
    if origin is tuple:
        items = [raw] if isinstance(raw, str) else raw  # one string stands for a list of one
        if not isinstance(items, list):
            raise RecipeError(f"{where}: {path} must be a list, found {type(raw).__name__}")
        return tuple(_value(args[0], item, where, f"{path}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(raw, dict):
            raise RecipeError(f"{where}: {path} must be a table, found {type(raw).__name__}")
        return {key: _value(args[1], item, where, f"{path}.{key}") for key, item in raw.items()}
    if kind is Decimal and isinstance(raw, int | Decimal | str) and not isinstance(raw, bool):
        try:
            number = Decimal(raw)
        except ArithmeticError as error:
            raise RecipeError(f"{where}: {path} must be a number, found {raw!r}") from error
        if not number.is_finite():
            raise RecipeError(f"{where}: {path} must be finite, found {raw!r}")
        return number
    if kind is date and isinstance(raw, date):
        return raw
    if kind is date and isinstance(raw, str):
        try:
            return date.fromisoformat(raw)
        except ValueError as error:
            raise RecipeError(f"{where}: {path} must be a date like 2026-11-01, found {raw!r}") from error
    if kind in (str, bool, int) and type(raw) is kind:
        return raw
    raise RecipeError(f"{where}: {path} must be {getattr(kind, '__name__', kind)}, found {type(raw).__name__}")


def source_from_identity(plain: dict[str, Any]) -> Source:
    """The source as it was when its evidence was captured, from `Source.identity()` kept on the snapshot."""
    source = _build(Source, {key: value for key, value in plain.items() if value is not None}, "evidence snapshot", "source.")
    assert isinstance(source, Source)
    return source

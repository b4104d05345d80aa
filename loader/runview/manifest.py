"""The manifest of a run view, `views/<view_id>.json`: every field that decides or justifies the sequences.

Parsing is strict, since a field that is skipped is a promise that is dropped. The loader never serialises a manifest:
the view_id is the sha256 of the bytes as they lie on disk.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runview import canonical
from runview.errors import ManifestError
from runview.fields import Fields
from runview.order import ORDER_VERSION, ComponentGeometry, Order, StageGeometry

FORMAT = 1
KEYS = (
    "format",
    "name",
    "recipe",
    "release",
    "stage_versions",
    "tokenizer",
    "components",
    "stages",
    "seq_len",
    "packing",
    "attention",
    "label_policy",
    "loss_normalisation",
    "tail_batch",
    "seed",
    "order",
    "batch_schedule",
    "split",
    "validation",
    "quarantine",
    "duplicates",
    "ledgers",
    "continues",
    "geometry",
)
RELATIONS = ("erasure", "amendment")


@dataclass(frozen=True)
class Tokenizer:
    tokenizer_id: str
    vocab_size: int
    bos: int | None
    eos: int | None
    pad: int | None
    fill_id: int

    @property
    def padding_id(self) -> int:
        """What fills positions that hold no document: `pad`, or `fill_id` where the tokenizer has no pad token."""
        return self.fill_id if self.pad is None else self.pad


@dataclass(frozen=True)
class Component:
    """One component's files and counts. n_docs, n_tokens, n_packs are the sums of the catalog's columns;
    n_loss_tokens the sum of the label weights in the stats, divided by 1000."""

    name: str
    window: int
    catalog: str
    stats: str
    n_docs: int
    n_tokens: int
    n_packs: int
    n_loss_tokens: int
    licences: Mapping[str, int]


@dataclass(frozen=True)
class Stage:
    """A stretch of positions with one mixture; `counts` are the packs it delivers of each component (absent: 0)."""

    name: str
    length: int
    shares: Mapping[str, str] | None
    weights: Mapping[str, int]
    epochs: str | None
    caps: Mapping[str, str]
    counts: Mapping[str, int]
    achieved_shares: Mapping[str, str]


@dataclass(frozen=True)
class Packing:
    """How segments became packs. Further fields of the recipe's packing are kept in `other`."""

    policy: str
    segment_multiple: int
    tail_pack: str
    min_fill: Any
    other: Mapping[str, Any]


@dataclass(frozen=True)
class BatchChange:
    from_position: int
    global_batch: int


@dataclass(frozen=True)
class Continues:
    """An earlier view whose cursors are accepted up to a position."""

    view_id: str
    relation: str
    up_to_position: int


@dataclass(frozen=True)
class Manifest:
    view_id: str
    name: str
    recipe_id: str
    recipe_text: str
    release: str
    release_id: str
    stage_versions: Mapping[str, Any]
    tokenizer: Tokenizer
    components: tuple[Component, ...]
    stages: tuple[Stage, ...]
    seq_len: int
    packing: Packing
    attention: str
    label_policy: str
    loss_normalisation: str
    tail_batch: str
    seed: str
    order: int
    batch_schedule: tuple[BatchChange, ...]
    split: str
    validation: tuple[Component, ...]
    quarantine: Mapping[str, Any] | None
    duplicates: Mapping[str, Any] | None
    ledgers: Mapping[str, Any] | None
    continues: tuple[Continues, ...]
    geometry: str

    @property
    def length(self) -> int:
        """All positions of the run."""
        return sum(stage.length for stage in self.stages)

    def order_of(self, n_packs: Mapping[str, Sequence[int]]) -> Order:
        """The order, once the catalogs say how many packs each shard of each component has.

        Raises ManifestError when the geometry digest or a stage's counts disagree.
        """
        components = [ComponentGeometry(c.name, c.window, n_packs[c.name]) for c in self.components]
        stages = [StageGeometry(s.name, s.length, s.weights) for s in self.stages]
        found = geometry_digest(
            seed=self.seed,
            order=self.order,
            seq_len=self.seq_len,
            stages=stages,
            components=components,
            batch_schedule=[(b.from_position, b.global_batch) for b in self.batch_schedule],
        )
        if found != self.geometry:
            raise ManifestError(
                f"view {self.view_id}: geometry {self.geometry} expected, {found} found from seed, order, "
                "seq_len, batch schedule, stages and catalogs; the view was not built from these files"
            )
        try:
            order = Order(self.seed, stages, components)
        except ValueError as error:
            raise ManifestError(f"view {self.view_id}: {error}") from error
        for number, stage in enumerate(self.stages):
            delivered = order.counts(number, stage.length)
            if {name: n for name, n in delivered.items() if n} != {name: n for name, n in stage.counts.items() if n}:
                raise ManifestError(
                    f"view {self.view_id}: stage {stage.name!r} declares counts {dict(stage.counts)}, its order delivers {delivered}"
                )
        return order


def parse(data: bytes) -> Manifest:
    """A validated Manifest from the file's bytes; ManifestError names the key that is unknown, missing or wrong."""
    view_id = hashlib.sha256(data).hexdigest()
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"view {view_id}: not a JSON manifest ({error})") from error
    root = Fields(value, "manifest")
    if root.value.get("format", FORMAT) != FORMAT:
        raise ManifestError(f"manifest: format {root.value['format']!r}, this loader knows {FORMAT}; upgrade runview")
    root.required(KEYS)
    root.choice("label_policy", ("all",))
    if root.value["order"] != ORDER_VERSION:
        raise root.fail("order", f"{ORDER_VERSION}, the version this loader knows")
    recipe = Fields(root.value["recipe"], "manifest.recipe").required(("recipe_id", "text"))
    release = Fields(root.value["release"], "manifest.release").required(("name", "release_id"))
    manifest = Manifest(
        view_id=view_id,
        name=root.text("name"),
        recipe_id=recipe.hex64("recipe_id"),
        recipe_text=recipe.text("text"),
        release=release.text("name"),
        release_id=release.hex64("release_id"),
        stage_versions=root.free("stage_versions", optional=False) or {},
        tokenizer=_tokenizer(Fields(root.value["tokenizer"], "manifest.tokenizer")),
        components=root.items("components", _component, least=1),
        stages=root.items("stages", _stage, least=1),
        seq_len=root.count("seq_len", least=1),
        packing=_packing(Fields(root.value["packing"], "manifest.packing")),
        attention=root.choice("attention", ("intra_document", "full")),
        label_policy="all",
        loss_normalisation=root.choice("loss_normalisation", ("token", "sample")),
        tail_batch=root.choice("tail_batch", ("drop", "masked_pad")),
        seed=root.text("seed"),
        order=ORDER_VERSION,
        batch_schedule=root.items("batch_schedule", _batch_change, least=1),
        split=root.choice("split", ("train",)),
        validation=root.items("validation", _validation),
        quarantine=root.free("quarantine"),
        duplicates=root.free("duplicates"),
        ledgers=root.free("ledgers"),
        continues=root.items("continues", _continues),
        geometry=root.hex64("geometry"),
    )
    _cross_check(root, manifest)
    return manifest


def geometry_digest(
    *,
    seed: str,
    order: int,
    seq_len: int,
    batch_schedule: Sequence[tuple[int, int]],
    stages: Sequence[StageGeometry],
    components: Sequence[ComponentGeometry],
) -> str:
    """What a cursor's meaning depends on, as one digest: equal geometry means equal order.

    sha256 of canonical JSON ["geometry", seed, order, seq_len, [{"from_position", "global_batch"}, ...],
    [[name, length, weights], ...], [[name, window, [n_packs of each shard]], ...]].
    """
    return canonical.digest(
        [
            "geometry",
            seed,
            order,
            seq_len,
            [{"from_position": position, "global_batch": batch} for position, batch in batch_schedule],
            [[stage.name, stage.length, dict(stage.weights)] for stage in stages],
            [[c.name, c.window, [int(n) for n in c.n_packs]] for c in components],
        ]
    )


def _tokenizer(at: Fields) -> Tokenizer:
    at.required(("tokenizer_id", "vocab_size", "bos", "eos", "pad", "fill_id"))
    return Tokenizer(
        at.hex64("tokenizer_id"),
        at.count("vocab_size", least=1),
        at.token("bos"),
        at.token("eos"),
        at.token("pad"),
        at.count("fill_id"),
    )


def _component(at: Fields) -> Component:
    at.required(("name", "window", "catalog", "stats", "n_docs", "n_tokens", "n_packs", "n_loss_tokens", "licences"))
    return _files(at, at.count("window", least=1), at.mapping("licences", Fields.count))


def _validation(at: Fields) -> Component:
    at.required(("name", "catalog", "stats", "n_docs", "n_tokens", "n_packs", "n_loss_tokens"))
    return _files(at, 1, {})


def _files(at: Fields, window: int, licences: Mapping[str, int]) -> Component:
    return Component(
        at.name("name"),
        window,
        at.hex64("catalog"),
        at.hex64("stats"),
        at.count("n_docs"),
        at.count("n_tokens"),
        at.count("n_packs"),
        at.count("n_loss_tokens"),
        licences,
    )


def _stage(at: Fields) -> Stage:
    at.required(("name", "length", "shares", "weights", "epochs", "caps", "counts", "achieved_shares"))
    shares = None if at.value["shares"] is None else at.mapping("shares", Fields.decimal)
    epochs = None if at.value["epochs"] is None else at.decimal("epochs")
    return Stage(
        at.text("name"),
        at.count("length", least=1),
        shares,
        at.mapping("weights", Fields.count),
        epochs,
        at.mapping("caps", Fields.decimal),
        at.mapping("counts", Fields.count),
        at.mapping("achieved_shares", Fields.decimal),
    )


def _packing(at: Fields) -> Packing:
    known = ("policy", "segment_multiple", "tail_pack", "min_fill")
    at.required(known, extra=True)
    return Packing(
        at.text("policy"),
        at.count("segment_multiple", least=1),
        at.choice("tail_pack", ("drop", "masked_pad")),
        at.value["min_fill"],
        {key: value for key, value in at.value.items() if key not in known},
    )


def _batch_change(at: Fields) -> BatchChange:
    at.required(("from_position", "global_batch"))
    return BatchChange(at.count("from_position"), at.count("global_batch", least=1))


def _continues(at: Fields) -> Continues:
    at.required(("view_id", "relation", "up_to_position"))
    return Continues(at.hex64("view_id"), at.choice("relation", RELATIONS), at.count("up_to_position"))


def _cross_check(root: Fields, manifest: Manifest) -> None:
    seed = manifest.seed
    if not seed or not set(seed) <= set("0123456789abcdef"):
        raise root.fail("seed", "a lower-case hex string")
    for key, group in (("components", manifest.components), ("validation", manifest.validation)):
        names = [component.name for component in group]
        if len(set(names)) != len(names):
            raise ManifestError(f"manifest.{key}: names must be unique, found {names}")
    names = [component.name for component in manifest.components]
    for at, stage in enumerate(manifest.stages):
        for field in ("shares", "weights", "caps", "counts", "achieved_shares"):
            unknown = set(getattr(stage, field) or {}) - set(names)
            if unknown:
                raise ManifestError(f"manifest.stages[{at}].{field}: {sorted(unknown)[0]!r} is no component of {names}")
    if len({stage.name for stage in manifest.stages}) != len(manifest.stages):
        raise ManifestError("manifest.stages: names must be unique")
    if max(manifest.tokenizer.fill_id, manifest.tokenizer.padding_id) >= manifest.tokenizer.vocab_size:
        raise ManifestError(f"manifest.tokenizer: fill_id and pad must be below vocab_size {manifest.tokenizer.vocab_size}")
    schedule = manifest.batch_schedule
    if schedule[0].from_position != 0:
        raise ManifestError(f"manifest.batch_schedule[0].from_position must be 0, found {schedule[0].from_position}")
    for at in range(1, len(schedule)):
        span = schedule[at].from_position - schedule[at - 1].from_position
        if span <= 0 or span % schedule[at - 1].global_batch:
            raise ManifestError(
                f"manifest.batch_schedule[{at}].from_position must follow the previous one by a multiple of "
                f"its global batch {schedule[at - 1].global_batch}, found {schedule[at].from_position}"
            )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

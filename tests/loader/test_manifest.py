"""The manifest: strict parsing with the key named, and a geometry digest pinned by a literal."""

import copy
import json
from typing import Any

import pytest

from runview import ManifestError
from runview.canonical import canonical_json, digest
from runview.manifest import KEYS, geometry_digest, parse
from runview.order import ComponentGeometry, StageGeometry

NESTED: dict[str, tuple[Any, ...]] = {
    "recipe": ("recipe_id", "text"),
    "release": ("name", "release_id"),
    "tokenizer": ("tokenizer_id", "vocab_size", "bos", "eos", "pad", "fill_id"),
}


def encode(manifest: Any) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def edited(tiny: Any, *path: Any, value: Any = None, remove: bool = False) -> bytes:
    manifest = copy.deepcopy(tiny.manifest)
    at = manifest
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return encode(manifest)


def test_parse_reads_every_field(tiny: Any) -> None:
    manifest = parse(tiny.path.read_bytes())
    assert manifest.view_id == tiny.view_id
    assert manifest.name == "tiny"
    assert manifest.release == "2026-11"
    assert [c.name for c in manifest.components] == ["web", "code", "math"]
    assert manifest.components[1].window == 1
    assert [(s.name, s.length, dict(s.weights)) for s in manifest.stages] == [
        (s["name"], s["length"], s["weights"]) for s in tiny.manifest["stages"]
    ]
    assert manifest.tokenizer.padding_id == 0
    assert manifest.packing.policy == "concat"
    assert manifest.length == sum(s["length"] for s in tiny.manifest["stages"])
    assert set(KEYS) == set(tiny.manifest)
    with pytest.raises(AttributeError):
        manifest.seq_len = 1  # type: ignore[misc]


def test_every_key_is_needed_and_no_other_is_accepted(tiny: Any) -> None:
    paths: list[tuple[Any, ...]] = [(key,) for key in KEYS]
    paths += [(outer, key) for outer, keys in NESTED.items() for key in keys]
    paths += [("packing", key) for key in ("policy", "segment_multiple", "tail_pack", "min_fill")]
    paths += [(outer, 0, key) for outer in ("components", "stages", "batch_schedule", "validation") for key in tiny.manifest[outer][0]]
    assert len(paths) > 60
    for path in paths:
        with pytest.raises(ManifestError, match=rf"{path[-1]!r} is missing"):
            parse(edited(tiny, *path, remove=True))
    for path in [(), *((key,) for key in NESTED), ("components", 0), ("stages", 1), ("batch_schedule", 0), ("validation", 0)]:
        with pytest.raises(ManifestError, match="'surprise' is unknown"):
            parse(edited(tiny, *path, "surprise", value=1))
    parse(edited(tiny, "packing", "algorithm", value="stable"))  # packing may say more
    parse(edited(tiny, "tokenizer", "pad", value=None))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 2, "format 2"),
        (("order",), 2, "'order' must be 1"),
        (("label_policy",), "assistant", "'label_policy' must be one of"),
        (("attention",), "sliding", "'attention'"),
        (("loss_normalisation",), "mean", "'loss_normalisation'"),
        (("tail_batch",), "repeat", "'tail_batch'"),
        (("split",), "test", "'split'"),
        (("seed",), "XYZ", "'seed'"),
        (("seed",), "", "'seed'"),
        (("seq_len",), 0, "'seq_len' must be an integer from 1"),
        (("seq_len",), True, "'seq_len'"),
        (("seq_len",), 16.0, "'seq_len'"),
        (("geometry",), "ab", "'geometry' must be a sha256"),
        (("components",), [], "'components' must be a list of at least 1"),
        (("components", 0, "name"), "We b", "'name'"),
        (("components", 1, "name"), "web", "names must be unique"),
        (("components", 0, "window"), 0, "'window'"),
        (("components", 0, "catalog"), "AB" * 32, "'catalog'"),
        (("components", 0, "n_packs"), 2**53, "'n_packs'"),
        (("components", 0, "licences"), [], "licences: an object"),
        (("stages", 0, "length"), 0, "'length'"),
        (("stages", 0, "weights"), {"none": 1}, "'none' is no component"),
        (("stages", 0, "weights"), {"web": -1}, "'web'"),
        (("stages", 0, "shares"), {"web": 0.5}, "'web' must be a decimal string"),
        (("stages", 1, "name"), "base", "names must be unique"),
        (("tokenizer", "fill_id"), 60000, "below vocab_size"),
        (("tokenizer", "eos"), "1", "'eos'"),
        (("packing", "segment_multiple"), 0, "'segment_multiple'"),
        (("packing", "tail_pack"), "wrap", "'tail_pack'"),
        (("batch_schedule",), [], "'batch_schedule'"),
        (("batch_schedule", 0, "from_position"), 8, "must be 0"),
        (("batch_schedule",), [{"from_position": 0, "global_batch": 8}, {"from_position": 12, "global_batch": 4}], "multiple of"),
        (("continues",), [{"view_id": "ab" * 32, "relation": "fork", "up_to_position": 1}], "'relation'"),
        (("stage_versions",), None, "'stage_versions'"),
        (("quarantine",), [], "'quarantine'"),
    ],
)
def test_wrong_values_name_their_key(tiny: Any, path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse(edited(tiny, *path, value=value))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b'{"format":1,"format":1}', b'{"format":NaN}', b"[" * 100_000],
    ids=["empty", "list", "cut", "not-utf8", "duplicate", "nan", "deep"],
)
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse(data)


def test_geometry_digest_is_pinned_and_sensitive() -> None:
    base: dict[str, Any] = {
        "seed": "5eed",
        "order": 1,
        "seq_len": 16,
        "batch_schedule": [(0, 8), (80, 16)],
        "stages": [StageGeometry("s", 100, {"b": 2, "a": 1})],
        "components": [ComponentGeometry("a", 2, [3, 4])],
    }
    text = (
        b'["geometry","5eed",1,16,[{"from_position":0,"global_batch":8},{"from_position":80,"global_batch":16}],'
        b'[["s",100,{"a":1,"b":2}]],[["a",2,[3,4]]]]'
    )
    import hashlib

    assert (
        geometry_digest(**base) == hashlib.sha256(text).hexdigest() == ("7fa7bca9a6655f138ae431b24464036691b6e9de09770f73ea0bbabd3c195950")
    )
    changes: list[dict[str, Any]] = [
        {"seed": "5eee"},
        {"seq_len": 17},
        {"batch_schedule": [(0, 8)]},
        {"stages": [StageGeometry("s", 100, {"b": 2, "a": 2})]},
        {"components": [ComponentGeometry("a", 2, [4, 3])]},
        {"components": [ComponentGeometry("a", 1, [3, 4])]},
    ]
    assert len({geometry_digest(**base), *(geometry_digest(**(base | change)) for change in changes)}) == 7


def test_canonical_json_takes_only_what_it_can_write_exactly() -> None:
    assert canonical_json({"b": [1, None, True, 'x\n"\\'], "a": -5}) == b'{"a":-5,"b":[1,null,true,"x\\n\\"\\\\"]}'
    assert digest(["x", 1]) == "59402b0471b497c05ad760c869c511f92a9fbdc78b7f4c51703964d9321bc031"
    for value in (1.0, 2**53, "한", {1: 2}, {"é": 1}, b"x", float("nan"), [{"a": {1}}]):
        with pytest.raises(ValueError, match=r"integer|string"):
            canonical_json(value)

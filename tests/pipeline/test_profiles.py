"""Profiles: a table that breaks exactly one rule turns exactly that rule red, and the offending ids are named.

A small valid set of tables, conformed to the real schemas, is broken in one place at a time. The rules are judged by their
bounds here; that Great Expectations judges the same is in tests/resources/test_expectations.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pipeline import profiles
from pipeline.contracts import RULES, judge
from pipeline.errors import ContractError
from pipeline.ids import sha256_hex
from pipeline.ledger import Ledger
from pipeline.profiles import Profile
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS, EVIDENCE, SHARD_DOCS, SHARDS, TableSpec
from runview.manifest import parse
from tests.pipeline.run_view.view_fixture import fixture_view, manifest_of

DEFAULTS: dict[pa.DataType, Any] = {pa.string(): "x", pa.int64(): 1, pa.int32(): 0, pa.float64(): 1.0, pa.date32(): date(2026, 11, 20)}


def table(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of a real schema; what is not given is filled in by type."""

    def fill(kind: pa.DataType) -> Any:
        return DEFAULTS.get(kind, datetime(2026, 11, 20, tzinfo=UTC) if pa.types.is_timestamp(kind) else [])

    full = [{c.name: row.get(c.name, None if c.nullable else fill(c.type)) for c in spec.columns} for row in rows]
    conformed = spec.conform(pa.Table.from_pylist(full, schema=spec.schema))
    spec.check_keys(conformed)
    frame = pl.from_arrow(conformed)
    assert isinstance(frame, pl.DataFrame)
    return frame


def put(frame: pl.DataFrame, row: int, **values: Any) -> pl.DataFrame:
    """The frame with some values of one row replaced."""
    exprs = [
        pl.when(pl.int_range(pl.len()) == row).then(pl.lit(value, dtype=frame.schema[name])).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    ]
    return frame.with_columns(exprs)


def hexes(*numbers: int) -> list[str]:
    return [f"{n:064x}" for n in numbers]


def ledger(unit: str, total: int, **parts: int | dict[str, int]) -> Ledger:
    return Ledger(unit, "all", total, parts)


# Each stage: its valid arguments, and the function that makes the profile of them.
REASON = [{"rule": "min_words", "value": 1.0, "threshold": 5.0}]


def evidence() -> dict[str, Any]:
    rows = [{"evidence_id": f"e{n}", "payload": b"p", "payload_sha256": h, "deletion_keys": ["k:1"]} for n, h in enumerate(hexes(1, 2, 3))]
    rows[2] |= {"payload": None, "blob_sha256": "b"}
    frame = table(EVIDENCE, rows).with_columns(pl.col("payload").is_not_null().alias("has_payload"))
    ledgers = [ledger("payloads", 20, parsed=3, empty=15, rejected={"json": 1, "too_large": 1})]
    return {"evidence": frame, "n_rejects": 2, "keys_declared": True, "ledgers": ledgers}


def documents() -> dict[str, Any]:
    kinds = [("prose", "keep"), ("code", "keep"), ("math", "keep"), ("chat", "drop")]
    rows = [{"doc_id": f"d{n}", "evidence_id": f"e{n}", "text": "갈 x²", "kind": k, "decision": d} for n, (k, d) in enumerate(kinds)]
    rows[3] |= {"reasons": REASON, "text": ""}
    ledgers = [ledger("payloads", 6, parsed=4, empty=1, rejected={"charset": 1}), ledger("documents", 4, kept=3, dropped={"quality": 1})]
    return {"documents": table(DOCUMENTS, rows), "evidence_ids": pl.Series([f"e{n}" for n in range(6)]), "ledgers": ledgers}


def clusters() -> dict[str, Any]:
    rows = [
        {"doc_id": "d0", "cluster_id": "d0", "survivor_id": "d1", "split": "train"},
        {"doc_id": "d1", "cluster_id": "d0", "survivor_id": "d1", "split": "train"},
        {"doc_id": "d2", "cluster_id": "d2", "survivor_id": "d2", "split": "validation"},
    ]
    return {"clusters": table(CLUSTERS, rows), "member_ids": pl.Series(["d0", "d1", "d2"])}


def decisions() -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"doc_id": "d0", "decision": "drop", "primary_reason": "duplicate", "reasons": REASON, "cluster_id": "d0", "split": "train"},
        {"doc_id": "d1", "decision": "keep", "cluster_id": "d0", "split": "train"},
        {"doc_id": "d2", "decision": "keep", "cluster_id": "d2", "split": "validation"},
    ]
    members = pl.DataFrame({"doc_id": ["d0", "d1", "d2"], "text_sha256": ["t1", "t1", "t2"]})
    return {"decisions": table(DECISIONS, rows), "members": members, "ledgers": [ledger("documents", 3, kept=2, dropped={"duplicate": 1})]}


def shards() -> dict[str, Any]:
    rows = [{"shard_id": f"s{n}", "component": "c", "split": "train", "ordinal": n, "n_docs": n + 1, "n_tokens": 10} for n in range(2)]
    docs = [{"doc_id": f"d{n}", "shard_id": "s0" if n == 0 else "s1", "n_tokens": 5} for n in range(3)]
    ledgers = [
        ledger("tokens", 20, packed=18, lost={"tail": 2}),
        ledger("tokens/c/train", 20, packed=18, lost={"tail": 2}),
        ledger("round_trip", 3, equal=3, different={}),
    ]
    return {
        "shards": table(SHARDS, rows),
        "shard_docs": table(SHARD_DOCS, docs),
        "kept_ids": pl.Series(["d0", "d1", "d2"]),
        "missing_files": [],
        "ledgers": ledgers,
    }


MADE, _, _, PARTS = fixture_view()
MANIFEST = manifest_of(MADE, PARTS)


def candidate() -> dict[str, Any]:
    """The fixture's view; it is too small to achieve its shares, so they are set to the declared ones."""
    manifest = parse(MANIFEST)
    stages = tuple(replace(stage, achieved_shares={**stage.achieved_shares, **(stage.shares or {})}) for stage in manifest.stages)
    return {"manifest": replace(manifest, stages=stages), "view_id": sha256_hex(MANIFEST)}


STAGES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[..., Profile]]] = {
    "evidence": (evidence, profiles.evidence_profile),
    "documents": (documents, profiles.documents_profile),
    "clusters": (clusters, profiles.clusters_profile),
    "decisions": (decisions, profiles.decisions_profile),
    "shards": (shards, profiles.shards_profile),
    "candidate": (candidate, profiles.candidate_profile),
}


def red(stage: str, profile: Profile) -> set[str]:
    """Rules of the stage that the profile breaks."""
    judged = judge(RULES[stage], profile.counts)
    low = {i["rule"].name for i in judged if i["rule"].minimum is not None and i["observed"] < i["rule"].minimum}
    return low | {i["rule"].name for i in judged if i["rule"].maximum is not None and i["observed"] > i["rule"].maximum}


@dataclass(frozen=True)
class Break:
    """One thing broken: the rule that must turn red, the observed value, the ids that must be named."""

    stage: str
    rule: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    observed: float
    ids: list[str] | None = None
    also: tuple[str, ...] = ()
    what: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.stage, self.rule, self.what)))


def on(name: str, row: int, **values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: put(given[name], row, **values)}


def books(n: int, total: int, **parts: int | dict[str, int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Ledger `n` replaced."""
    return lambda given: {"ledgers": [ledger(b.unit, total, **parts) if i == n else b for i, b in enumerate(given["ledgers"])]}


def first(name: str, n: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Only the first rows of a table."""
    return lambda given: {name: given[name].head(n)}


def again(name: str, row: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: pl.concat([given[name], given[name][row : row + 1]])}


def both(*changes: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        for one in changes:
            given = given | one(given)
        return given

    return change


def stage_of(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Fields of the manifest's first stage replaced."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        manifest = given["manifest"]
        return {"manifest": replace(manifest, stages=(replace(manifest.stages[0], **values), *manifest.stages[1:]))}

    return change


def shifted(given: dict[str, Any]) -> dict[str, Any]:
    """An achieved share that is off by more than the allowed 0.01."""
    first_stage = given["manifest"].stages[0]
    name, share = next(iter(first_stage.shares.items()))
    achieved = {**first_stage.achieved_shares, name: str(Fraction(share) + Fraction(11, 1000))}
    return stage_of(achieved_shares=achieved)(given)


def unpacked(parts: Any) -> Any:
    return (replace(parts[0], n_packs=0), *parts[1:])


def components(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {"manifest": replace(given["manifest"], components=change(given["manifest"].components))}


def everywhere(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Fields of every stage replaced, and only the first stage left to deliver anything."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        first_stage, *others = (replace(stage, **values) for stage in given["manifest"].stages)
        return {"manifest": replace(given["manifest"], stages=(first_stage, *(replace(stage, counts={}) for stage in others)))}

    return change


NAME = parse(MANIFEST).components[0].name
PACKS = parse(MANIFEST).components[0].n_packs
CAPS = parse(MANIFEST).stages[0].caps
NO_NAME: list[str] = [None]  # type: ignore[list-item]
EMPTY_LEDGER = {"parsed": 0, "empty": 18, "rejected": {"json": 2}}

UNCAPPED = {name: cap for name, cap in CAPS.items() if name != NAME}
TWICE = books(0, 21, parsed=4, empty=15, rejected={"json": 2})
NO_MEMBERS = {"member_ids": pl.Series([], dtype=pl.String)}
NO_DECISIONS = both(first("decisions", 0), books(0, 0, kept=0, dropped={}))
NO_SHARDS = both(first("shards", 0), first("shard_docs", 0), first("kept_ids", 0), books(0, 0, packed=0, lost={}))

BREAKS = [
    Break("evidence", "evidence_rows", both(first("evidence", 0), books(0, 20, **EMPTY_LEDGER)), 0),
    Break("evidence", "duplicate_evidence_id", both(again("evidence", 1), TWICE), 2, ["e1", "e1"]),
    Break("evidence", "duplicate_evidence_id", on("evidence", 0, evidence_id=None), 1, NO_NAME, what="null"),
    Break("evidence", "payload_missing", on("evidence", 2, blob_sha256=None), 1, ["e2"]),
    Break("evidence", "payload_missing", on("evidence", 1, has_payload=None), 1, ["e1"], what="null"),
    Break("evidence", "payload_digest_malformed", on("evidence", 0, payload_sha256="A" * 64), 1, ["e0"]),
    Break("evidence", "payload_digest_malformed", on("evidence", 0, payload_sha256="a" * 64 + "\n"), 1, ["e0"], what="line end"),
    Break("evidence", "payload_digest_malformed", on("evidence", 0, payload_sha256="a" * 63), 1, ["e0"], what="short"),
    Break("evidence", "payload_digest_malformed", on("evidence", 0, payload_sha256=None), 1, ["e0"], what="null"),
    Break("evidence", "deletion_keys_missing", on("evidence", 1, deletion_keys=[]), 1, ["e1"]),
    Break("evidence", "deletion_keys_missing", on("evidence", 1, deletion_keys=None), 1, ["e1"], what="null"),
    Break("evidence", "ledger_gap", books(0, 21, parsed=3, empty=15, rejected={"json": 2}), 1),
    Break("evidence", "ledger_gap", first("evidence", 2), 1, what="row lost"),
    Break("evidence", "ledger_gap", lambda _: {"n_rejects": 1}, 1, what="reject lost"),
    Break("evidence", "rejected_share", both(books(0, 20, parsed=3, empty=14, rejected={"json": 3}), lambda _: {"n_rejects": 3}), 0.15),
    Break("documents", "document_rows", both(first("documents", 0), books(1, 0, kept=0, dropped={})), 0),
    Break("documents", "duplicate_doc_id", both(again("documents", 1), books(1, 5, kept=4, dropped={"q": 1})), 2, ["d1", "d1"]),
    Break("documents", "duplicate_doc_id", on("documents", 0, doc_id=None), 1, NO_NAME, what="null"),
    Break("documents", "orphan_document", on("documents", 2, evidence_id="e9"), 1, ["d2"]),
    Break("documents", "orphan_document", on("documents", 2, evidence_id=None), 1, ["d2"], what="null"),
    Break("documents", "kept_blank_text", on("documents", 1, text=" \t\u3000\u2028\n"), 1, ["d1"]),
    Break("documents", "kept_blank_text", on("documents", 1, text=None), 1, ["d1"], ("text_not_nfc",), what="null"),
    Break("documents", "text_not_nfc", on("documents", 0, text="\u1100\u1161\u11af"), 1, ["d0"]),
    Break("documents", "text_not_nfc", on("documents", 3, text="e\u0301"), 1, ["d3"], what="dropped"),
    Break("documents", "dropped_without_reason", on("documents", 3, reasons=[]), 1, ["d3"]),
    Break("documents", "dropped_without_reason", on("documents", 3, reasons=None), 1, ["d3"], what="null"),
    Break("documents", "dropped_without_reason", on("documents", 0, decision=None), 1, ["d0"], ("ledger_gap",), what="no decision"),
    Break("documents", "kept_with_reason", on("documents", 0, reasons=REASON), 1, ["d0"]),
    Break("documents", "kept_with_reason", on("documents", 0, reasons=None), 1, ["d0"], what="null"),
    Break("documents", "kind_unknown", on("documents", 3, kind="poem"), 1, ["d3"]),
    Break("documents", "kind_unknown", on("documents", 3, kind=None), 1, ["d3"], what="null"),
    Break("documents", "ledger_gap", books(0, 6, parsed=4, empty=1, rejected={}), 1),
    Break("documents", "ledger_gap", books(1, 4, kept=2, dropped={"quality": 2}), 2, what="decisions counted otherwise"),
    Break("documents", "ledger_gap", first("documents", 3), 2, what="row lost"),
    Break("documents", "ledger_gap", lambda _: {"evidence_ids": pl.Series([f"e{n}" for n in range(7)])}, 1, what="evidence left out"),
    Break("documents", "replacement_share", on("documents", 0, text="a\ufffdb"), 0.25),
    Break("clusters", "cluster_rows", both(first("clusters", 0), lambda _: NO_MEMBERS), 0),
    Break("clusters", "document_without_cluster", lambda _: {"member_ids": pl.Series(["d0", "d1", "d2", "d9"])}, 1, ["d9"]),
    Break("clusters", "document_without_cluster", first("clusters", 2), 1, ["d2"], what="row lost"),
    Break("clusters", "document_without_cluster", lambda _: {"member_ids": pl.Series(["d0", "d1", "d2", None])}, 1, NO_NAME, what="null"),
    Break("clusters", "cluster_across_splits", on("clusters", 1, split="validation"), 1, ["d0"]),
    Break("clusters", "cluster_across_splits", on("clusters", 2, split=None), 1, ["d2"], what="null"),
    Break("clusters", "survivor_outside_cluster", on("clusters", 1, survivor_id="d2"), 1, ["d1"]),
    Break("clusters", "survivor_outside_cluster", on("clusters", 1, survivor_id="d9"), 1, ["d1"], what="unknown"),
    Break("clusters", "survivor_outside_cluster", on("clusters", 1, survivor_id=None), 1, ["d1"], what="null"),
    Break("decisions", "decision_rows", NO_DECISIONS, 0, None, ("undecided_document", "kept_rows")),
    Break("decisions", "undecided_document", both(first("decisions", 2), books(0, 2, kept=1, dropped={"duplicate": 1})), 1, ["d2"]),
    Break("decisions", "kept_duplicate_text", lambda given: {"members": put(given["members"], 2, text_sha256="t1")}, 2, ["d1", "d2"]),
    Break("decisions", "kept_duplicate_text", lambda given: {"members": given["members"].head(2)}, 1, ["d2"], what="no member"),
    Break("decisions", "dropped_without_primary", on("decisions", 0, primary_reason=None), 1, ["d0"]),
    Break("decisions", "kept_with_reason", on("decisions", 1, reasons=REASON), 1, ["d1"]),
    Break("decisions", "kept_with_reason", on("decisions", 1, reasons=None), 1, ["d1"], what="null"),
    Break("decisions", "cluster_across_splits", on("decisions", 0, split="validation"), 1, ["d0"]),
    Break("decisions", "cluster_across_splits", on("decisions", 2, split=None), 1, ["d2"], what="null"),
    Break("decisions", "ledger_gap", books(0, 4, kept=2, dropped={"duplicate": 1}), 2),
    Break("decisions", "ledger_gap", books(0, 3, kept=3, dropped={"duplicate": 0}), 2, what="counted otherwise"),
    Break("decisions", "ledger_gap", on("decisions", 0, decision="maybe"), 1, what="neither kept nor dropped"),
    Break(
        "decisions",
        "kept_rows",
        lambda given: {
            "decisions": given["decisions"].with_columns(decision=pl.lit("drop"), primary_reason=pl.lit("language")),
            "ledgers": [ledger("documents", 3, kept=0, dropped={"language": 3})],
        },
        0,
    ),
    Break("shards", "shard_rows", NO_SHARDS, 0),
    Break("shards", "empty_shard", both(on("shards", 0, n_tokens=0), on("shards", 1, n_tokens=20)), 1, ["s0"]),
    Break("shards", "empty_shard", both(on("shards", 0, n_docs=0), on("shards", 1, n_docs=3)), 1, ["s0"], what="no documents"),
    Break("shards", "empty_shard", both(on("shards", 0, n_docs=None), on("shards", 1, n_docs=3)), 1, ["s0"], what="null"),
    Break("shards", "kept_not_in_shard", lambda _: {"kept_ids": pl.Series(["d0", "d1", "d2", "d9"])}, 1, ["d9"]),
    Break("shards", "dropped_in_shard", lambda _: {"kept_ids": pl.Series(["d0", "d1"])}, 1, ["d2"]),
    Break("shards", "duplicate_doc_id", both(again("shard_docs", 0), on("shards", 0, n_docs=2)), 2, ["d0", "d0"]),
    Break("shards", "shard_file_missing", lambda _: {"missing_files": ["s1", "s0"]}, 2, ["s0", "s1"]),
    Break("shards", "token_gap", books(0, 20, packed=18, lost={"tail": 1}), 1),
    Break("shards", "token_gap", books(1, 20, packed=18, lost={}), 2, what="one component"),
    Break("shards", "token_gap", on("shards", 1, n_tokens=13), 3, what="the shards hold others"),
    Break("shards", "token_gap", on("shards", 1, n_docs=3), 1, what="the shards hold other documents"),
    Break("shards", "not_reversible", books(2, 3, equal=1, different={"ko/news": 2}), 2),
    Break("candidate", "component_rows", both(components(lambda _: ()), everywhere(counts={})), 0),
    Break("candidate", "component_without_packs", both(components(unpacked), everywhere(counts={})), 1, [NAME]),
    Break("candidate", "digest_mismatch", lambda _: {"view_id": "ab" * 32}, 1, ["ab" * 32]),
    Break("candidate", "cap_exceeded", everywhere(caps={**CAPS, NAME: "2"}, counts={NAME: 2 * PACKS + 1}), 1, [NAME]),
    Break("candidate", "cap_exceeded", stage_of(caps={**CAPS, NAME: "2"}, counts={NAME: 2 * PACKS + 1}), 1, [NAME], what="smallest cap"),
    Break("candidate", "cap_exceeded", everywhere(caps=UNCAPPED, counts={NAME: 1}), 1, [NAME], what="no cap"),
    Break("candidate", "share_deviation", shifted, 0.011),
]


@pytest.mark.parametrize("stage", STAGES)
def test_the_valid_tables_are_green_and_every_rule_judged_something(stage: str) -> None:
    given, profile_of = STAGES[stage]
    profile = profile_of(**given())
    assert red(stage, profile) == set()
    assert profile.examples == {}
    assert all(item["n_evaluated"] > 0 for item in judge(RULES[stage], profile.counts))


@pytest.mark.parametrize("case", BREAKS, ids=str)
def test_one_thing_broken_turns_one_rule_red(case: Break) -> None:
    given, profile_of = STAGES[case.stage]
    arguments = given()
    profile = profile_of(**arguments | case.change(arguments))
    assert red(case.stage, profile) == {case.rule, *case.also}
    assert profile.counts[case.rule] == pytest.approx(case.observed, abs=0.002)
    assert profile.examples.get(case.rule) == case.ids


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {(case.stage, case.rule) for case in BREAKS} == {(stage, rule.name) for stage, rules in RULES.items() for rule in rules}


@pytest.mark.parametrize("stage", RULES)
def test_rules_and_profiles_cover_each_other(stage: str) -> None:
    given, profile_of = STAGES[stage]
    assert set(profile_of(**given()).counts) == {name for rule in RULES[stage] for name in (rule.name, rule.evaluated)}


def test_the_bounds_of_a_cap_and_of_the_shares_are_inclusive() -> None:
    arguments = candidate()
    exact = everywhere(caps={**CAPS, NAME: "2"}, counts={NAME: 2 * PACKS})(arguments)
    assert red("candidate", profiles.candidate_profile(**arguments | exact)) == set()


def test_caps_hold_over_all_stages_together() -> None:
    arguments = candidate()
    half = replace(arguments["manifest"].stages[0], caps={NAME: "2"}, counts={NAME: PACKS + 1})
    twice = replace(arguments["manifest"], stages=(half, replace(half, name="second")))
    assert profiles.candidate_profile(twice, view_id=arguments["view_id"]).examples["cap_exceeded"] == [NAME]


def test_a_source_without_deletion_keys_needs_none() -> None:
    arguments = evidence() | {"keys_declared": False}
    arguments["evidence"] = put(arguments["evidence"], 0, deletion_keys=[])
    assert red("evidence", profiles.evidence_profile(**arguments)) == set()


def test_examples_are_the_first_twenty_in_id_order() -> None:
    frame = pl.DataFrame({"id": [f"{n:03}" for n in range(99, -1, -1)], "bad": [n % 2 == 0 for n in range(100)]})
    profile = Profile()
    profile.bad("rule", frame, pl.col("bad"), id_column="id")
    assert profile.counts["rule"] == 50
    assert profile.examples["rule"] == [f"{n:03}" for n in range(1, 41, 2)]


@pytest.mark.parametrize(
    ("stage", "ledgers", "message"),
    [
        ("evidence", [], "one payloads ledger expected, found 0"),
        ("evidence", [ledger("payloads", 3, parsed=3)], "payloads ledger: part 'rejected' is missing"),
        ("documents", [ledger("payloads", 6, parsed=6)], "one documents ledger expected, found 0"),
        ("documents", [ledger("payloads", 6), ledger("payloads", 6)], "one payloads ledger expected, found 2"),
        ("decisions", [ledger("documents", 3, kept=3)], "part 'dropped' is missing"),
        ("shards", [ledger("round_trip", 3, equal=3, different={})], "one tokens ledger expected, found 0"),
        ("shards", [ledger("tokens", 20, packed=20)], "one round_trip ledger expected, found 0"),
        ("shards", [ledger("tokens", 20, packed=20), ledger("round_trip", 3, equal=3)], "part 'different' is missing"),
    ],
)
def test_a_missing_count_is_an_error_never_zero(stage: str, ledgers: list[Ledger], message: str) -> None:
    given, profile_of = STAGES[stage]
    with pytest.raises(ContractError, match=message):
        profile_of(**given() | {"ledgers": ledgers})

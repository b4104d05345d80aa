"""Decisions of a release: all reasons, one primary category, a ledger that closes."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import ids
from pipeline.cleaned_docs import decide, reasons
from pipeline.cleaned_docs.duplicates import clusters
from pipeline.errors import ContractError, RecipeError
from pipeline.recipe import Decisions, Duplicates, Split
from pipeline.schemas import DECISIONS, DOCUMENTS, REASONS

PRIORITY = Decisions(("empty", "licence", "language", "duplicate", "quality"))
GOLDEN = {"1": "8e05224cad0f167fa93a75700ff1243a82ca75fff725d9f43a4dc28cfbc1f7f5"}
TEXT = "The same sentence stands in two files, and it is long enough to be kept by every rule."
ROWS = [
    ("a.txt#0", TEXT.encode()),
    ("b.txt#0", TEXT.encode()),
    ("c.txt#0", b"click here click here click here click here"),
    ("d.txt#0", b"click here click here click here click here"),
    ("e.txt#0", b" \n"),
    ("f.txt#0", b"def f():\n    return 1\n\nprint(f())\n"),
]


def judge(documents, priority=PRIORITY):
    made = clusters(documents, release="r", duplicates=Duplicates(), split=Split("5eed", Decimal("0.5")), version="c")
    return decide.decisions(documents, made, release="r", decisions=priority, version="d")


@pytest.fixture(scope="module")
def documents(run):
    return run(ROWS).documents


def test_one_of_equal_texts_stays_and_the_other_says_why(documents):
    table, ledger = judge(documents)
    keys = dict(zip(documents["doc_id"].to_pylist(), documents["record_key"].to_pylist(), strict=True))
    rows = {keys[row["doc_id"]]: row for row in table.to_pylist()}
    twins = [rows["a.txt#0"], rows["b.txt#0"]]
    (dropped,) = [row for row in twins if row["decision"] == "drop"]
    assert dropped["primary_reason"] == "duplicate"
    assert dropped["reasons"] == [{"rule": "duplicate.exact", "value": 1.0, "threshold": 1.0}]
    assert twins[0]["cluster_id"] == twins[1]["cluster_id"]
    assert twins[0]["split"] == twins[1]["split"]
    assert (rows["f.txt#0"]["decision"], rows["f.txt#0"]["primary_reason"], rows["f.txt#0"]["reasons"]) == ("keep", None, [])
    # both copies fail by themselves: being alike decides nothing
    assert [rows[key]["primary_reason"] for key in ("c.txt#0", "d.txt#0")] == ["quality", "quality"]
    assert [r["rule"] for r in rows["c.txt#0"]["reasons"]] == ["quality.max_top_bigram_fraction_en"]
    assert rows["e.txt#0"]["primary_reason"] == "empty"
    assert (ledger.total, ledger.parts["kept"]) == (6, 2)
    assert ledger.parts["dropped"] == {"empty": 1, "licence": 0, "language": 0, "duplicate": 1, "quality": 2}
    assert ledger.extra["rules"] == {"duplicate.exact": 1, "empty.text": 1, "quality.max_top_bigram_fraction_en": 3, "quality.min_words": 1}


def test_priority_decides_the_primary_reason_and_nothing_else(documents):
    turned = Decisions(("quality", "duplicate", "language", "licence", "empty"))
    (one, first), (two, second) = judge(documents), judge(documents, turned)
    assert first.parts["kept"] == second.parts["kept"]
    assert second.parts["dropped"]["quality"] == 3
    assert one["reasons"].equals(two["reasons"])


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        (("empty", "licence", "language", "duplicate"), r"missing \['quality'\]"),
        (("empty", "licence", "langage", "duplicate", "quality"), "did you mean 'language'"),
        (("empty", "empty", "licence", "language", "duplicate", "quality"), "each category once"),
    ],
)
def test_priority_names_every_category_once(documents, priority, message):
    with pytest.raises(RecipeError, match=message):
        judge(documents, Decisions(priority))
    with pytest.raises(RecipeError, match=message):
        decide.decisions_version(release="r", decisions=Decisions(priority), clusters="c", documents={})


def test_reasons_of_an_unknown_category_are_an_error(documents):
    rows = reasons.failed([0], "weather.rain", value=None, threshold=None)
    with pytest.raises(RecipeError, match="'weather'"):
        reasons.primary(rows, 1, priority=PRIORITY.priority)


def test_tables_of_different_members_are_an_error(documents):
    made = clusters(documents.slice(1), release="r", duplicates=Duplicates(), split=Split("5eed", Decimal("0.5")), version="c")
    with pytest.raises(ContractError, match="1 documents without a cluster"):
        decide.decisions(documents, made, release="r", decisions=PRIORITY, version="d")


def test_a_drop_without_reasons_is_an_error(documents):
    at = documents.schema.get_field_index("decision")
    wrong = documents.set_column(at, documents.schema.field(at), pa.array(["drop"] * len(documents)))
    with pytest.raises(ContractError, match="disagree in 3 documents"):
        judge(wrong)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(len(ROWS))))
def test_order_changes_nothing(documents, order):
    assert judge(documents.take(pa.array(order)))[0].equals(judge(documents)[0])


def test_golden_output_of_this_code_version(documents):
    found = ids.content_digest(judge(documents)[0], DECISIONS.key)
    assert found == GOLDEN[decide.CODE_VERSION], "output changed: declare a new CODE_VERSION"


def test_nothing_to_decide():
    table, ledger = judge(DOCUMENTS.schema.empty_table())
    assert (len(table), ledger.total) == (0, 0)


NAMES = st.sampled_from(["empty.text", "quality.min_words", "language.und"])
VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(st.tuples(NAMES, VALUES, VALUES), max_size=3), max_size=6))
def test_reason_lists_and_rows_are_inverses(lists):
    wanted = [[{"rule": r, "value": v, "threshold": t} for r, v, t in one] for one in lists]
    column = pa.array(wanted, REASONS)
    frame = reasons.to_rows(column)
    assert frame.height == sum(map(len, lists))
    assert reasons.to_column([frame], len(lists)).to_pylist() == wanted
    sliced = pa.array([[], *wanted], REASONS).slice(1)
    assert reasons.to_rows(sliced).equals(frame)
    found = reasons.primary(frame, len(lists), priority=PRIORITY.priority)
    order = {"empty": 0, "language": 2, "quality": 4}
    assert found.to_list() == [min((r.split(".")[0] for r, _, _ in one), key=order.__getitem__, default=None) for one in lists]
    assert found.dtype == pl.String

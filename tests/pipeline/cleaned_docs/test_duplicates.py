"""Clusters over a release: survivors by a total order, splits by cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import ids
from pipeline.cleaned_docs.duplicates import CODE_VERSION, clusters, clusters_version
from pipeline.cleaned_docs.split import splits
from pipeline.errors import ContractError, RecipeError
from pipeline.recipe import Duplicates, Split
from pipeline.schemas import CLUSTERS, TIMESTAMP

SPLIT = Split("5eed", Decimal("0.25"))
GOLDEN = {"1": "53e30c77e4679c321ca2ac1b8de609a47beb8c8b62d7069ce3c50c4a7990257c"}


def table(rows):
    """Rows of (doc_id, text_sha256, day, decision, licence)."""
    return pa.table(
        {
            "doc_id": pa.array([r[0] for r in rows], pa.string()),
            "text_sha256": pa.array([r[1] for r in rows], pa.string()),
            "n_chars": pa.array([len(r[1]) for r in rows], pa.int64()),
            "licence": pa.array([r[4] for r in rows], pa.string()),
            "collected_at": pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=r[2]) for r in rows], TIMESTAMP),
            "decision": pa.array([r[3] for r in rows], pa.string()),
        }
    )


def make(rows, duplicates=None, split=SPLIT):
    return clusters(table(rows), release="r", duplicates=duplicates or Duplicates(), split=split, version="v")


ROWS = [
    ("d3", "x", 0, "drop", "MIT"),
    ("d1", "x", 5, "keep", "MIT"),
    ("d2", "x", 2, "keep", "unknown"),
    ("d4", "y", 0, "keep", "MIT"),
    ("d6", "z", 1, "drop", "MIT"),
    ("d5", "z", 2, "drop", "MIT"),
]


def test_earliest_kept_document_survives():
    rows = {row["doc_id"]: row for row in make(ROWS).to_pylist()}
    assert {key: (row["cluster_id"], row["cluster_size"], row["survivor_id"], row["method"]) for key, row in rows.items()} == {
        "d1": ("d1", 3, "d2", "exact"),
        "d2": ("d1", 3, "d2", "self"),
        "d3": ("d1", 3, "d2", "exact"),
        "d4": ("d4", 1, "d4", "self"),
        "d5": ("d5", 2, "d6", "exact"),
        "d6": ("d5", 2, "d6", "self"),
    }
    assert {row["similarity"] for row in rows.values()} == {1.0}


def test_priority_of_the_recipe_decides():
    found = make(ROWS, Duplicates(priority=("licensed", "earliest", "doc_id"))).to_pylist()
    assert next(row for row in found if row["doc_id"] == "d3")["survivor_id"] == "d1"


def test_without_exact_every_document_is_its_own_cluster():
    found = make(ROWS, Duplicates(exact=False)).to_pylist()
    assert all(row["cluster_id"] == row["survivor_id"] == row["doc_id"] for row in found)


@pytest.mark.parametrize(
    ("priority", "message"), [(("longst", "doc_id"), "did you mean 'longest'"), (("longest",), "must end with 'doc_id'"), ((), "must end")]
)
def test_priority_has_to_be_known_and_total(priority, message):
    with pytest.raises(RecipeError, match=message):
        make(ROWS, Duplicates(priority=priority))


def test_document_of_two_members_is_an_error():
    with pytest.raises(ContractError, match="more than one member"):
        make([*ROWS, ROWS[0]])


DOCS = st.lists(
    st.tuples(
        st.integers(0, 10**6).map(lambda n: ids.digest("doc", n)),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.sampled_from(["keep", "drop"]),
        st.sampled_from(["MIT", "unknown"]),
    ),
    max_size=25,
    unique_by=lambda row: row[0],
)


@given(DOCS, st.randoms(use_true_random=False))
def test_order_changes_nothing_and_a_dropped_document_survives_only_over_dropped_ones(rows, random):
    found = make(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert make(shuffled).equals(found)
    assert found.schema.equals(CLUSTERS.schema)
    decision = {row[0]: row[3] for row in rows}
    text = {row[0]: row[1] for row in rows}
    for row in found.to_pylist():
        same = [key for key in text if text[key] == text[row["doc_id"]]]
        assert row["cluster_id"] == min(same)
        assert row["cluster_size"] == len(same)
        assert row["survivor_id"] in same
        assert decision[row["survivor_id"]] == "keep" or all(decision[key] == "drop" for key in same)
    assert len({(row["cluster_id"], row["split"], row["survivor_id"]) for row in found.to_pylist()}) == len(set(text.values()))


def test_golden_output_of_this_code_version():
    assert ids.content_digest(make(ROWS), CLUSTERS.key) == GOLDEN[CODE_VERSION], "output changed: declare a new CODE_VERSION"


@given(st.integers(1, 999), st.integers(0, 200))
def test_split_is_an_exact_integer_comparison(thousandths, n):
    cluster_id = ids.digest("doc", n)
    head = int(ids.row_digest("split", "5eed", cluster_id)[:16], 16)
    found = splits(pl.Series([cluster_id]), Split("5eed", Decimal(thousandths) / 1000))[0]
    assert (found == "validation") == (head * 1000 < thousandths * 2**64)


def test_split_share_seed_and_growth():
    names = pl.Series([ids.digest("doc", n) for n in range(4000)])
    small, large = splits(names, Split("5eed", Decimal("0.02"))), splits(names, Split("5eed", Decimal("0.1")))
    assert abs((small == "validation").mean() - 0.02) < 0.01
    assert ((small == "validation") & (large == "train")).sum() == 0
    assert (splits(names, Split("beef", Decimal("0.1"))) != large).any()
    assert set(splits(names, Split("5eed", Decimal(0)))) == {"train"}
    with pytest.raises(ValueError, match="below 1"):
        splits(names, Split("5eed", Decimal(1)))


def test_version_holds_release_recipe_and_members():
    base = {"release": "r", "duplicates": Duplicates(), "split": SPLIT, "documents": {"s/2026-01-01": "v1"}}
    found = [
        clusters_version(**base),
        clusters_version(**{**base, "split": Split("beef", Decimal("0.25"))}),
        clusters_version(**{**base, "documents": {"s/2026-01-01": "v2"}}),
        clusters_version(**{**base, "duplicates": Duplicates(priority=("doc_id",))}),
        clusters_version(**{**base, "release": "q"}),
    ]
    assert len({one.version for one in found}) == 5
    assert found[0].parents == {"documents/s/2026-01-01": "v1"}

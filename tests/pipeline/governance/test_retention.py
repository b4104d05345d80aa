"""Which versions are needed: by views, seals, newest place, age, and whatever those were made from."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from pipeline.governance.retention import Version, needed, waiting_views

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def version(name: str, stage: str, *, partition: str = "p", parents: tuple[str, ...] = (), age_hours: float = 100) -> Version:
    return Version(name, stage, partition, parents, NOW - timedelta(hours=age_hours))


CHAIN = [
    version("e1", "evidence", age_hours=500),
    version("e2", "evidence", age_hours=400),
    version("d1", "documents", parents=("e1",), age_hours=499),
    version("d1b", "documents", parents=("e1",), age_hours=498),
    version("d2", "documents", parents=("e2",), age_hours=399),
    version("s1", "shards", parents=("d1",), age_hours=300),
    version("s2", "shards", parents=("d2",), age_hours=200),
]


def test_the_newest_of_each_partition_and_what_it_was_made_from_stay() -> None:
    kept = needed(CHAIN, roots={}, now=NOW, min_age=timedelta())
    assert kept == {"e2": "newest of its partition", "d2": "newest of its partition", "s2": "newest of its partition"}


def test_a_view_keeps_its_versions_and_their_inputs_and_the_strongest_reason_is_told() -> None:
    kept = needed(CHAIN, roots={"published view": ["s1", "s2"], "sealed release": ["e1"]}, now=NOW, min_age=timedelta())
    assert kept["s1"] == kept["s2"] == "published view"
    assert (kept["d1"], kept["e1"]) == ("input of a needed version", "sealed release")
    assert "d1b" not in kept


def test_young_versions_stay_and_unknown_roots_are_passed_over() -> None:
    kept = needed(CHAIN, roots={"waiting view": ["never made"]}, now=NOW, min_age=timedelta(hours=350))
    assert kept["s1"] == "young"
    assert kept["d1"] == kept["e1"] == "input of a needed version"
    assert "d1b" not in kept


@given(st.permutations(CHAIN), st.lists(st.sampled_from([one.version for one in CHAIN])), st.integers(0, 600))
def test_order_changes_nothing_and_every_input_of_a_needed_version_is_needed(
    order: list[Version], published: list[str], hours: int
) -> None:
    roots = {"published view": published}
    kept = needed(order, roots=roots, now=NOW, min_age=timedelta(hours=hours))
    assert kept == needed(CHAIN, roots=roots, now=NOW, min_age=timedelta(hours=hours))
    assert set(published) <= set(kept)
    parents = {one.version: one.parents for one in CHAIN}
    assert all(set(parents[name]) <= set(kept) for name in kept)


def test_of_several_candidates_of_a_name_the_newest_waits_unless_it_is_published_or_withdrawn() -> None:
    def row(view_id: str, status: str, hour: int, name: str = "a") -> dict[str, object]:
        return {"view_id": view_id, "status": status, "name": name, "created_at": NOW + timedelta(hours=hour)}

    rows = [row("1", "candidate", 1), row("2", "candidate", 2), row("3", "candidate", 1, "b"), row("3", "published", 2, "b")]
    assert [item["view_id"] for item in waiting_views(rows)] == ["2"]
    assert waiting_views([*rows, row("2", "withdrawn", 3)]) == []

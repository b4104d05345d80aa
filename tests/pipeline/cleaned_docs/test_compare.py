"""Documents that changed side between two sets of decisions, and why."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaned_docs.compare import changes

STANDING = st.sampled_from([None, "duplicate", "quality"])


def frame(rows: dict[str, str | None]) -> pl.DataFrame:
    """doc -> primary reason, None when kept."""
    return pl.DataFrame(
        {"doc_id": list(rows), "decision": ["drop" if why else "keep" for why in rows.values()], "primary_reason": list(rows.values())},
        schema={"doc_id": pl.String, "decision": pl.String, "primary_reason": pl.String},
    )


def test_sides_and_reasons() -> None:
    before = frame({"a": None, "b": None, "c": "quality", "d": "quality", "e": "duplicate"})
    after = frame({"a": None, "b": "quality", "c": None, "d": "duplicate", "f": None, "g": "quality"})
    assert changes(before, after) == {
        "n_before": 5,
        "n_after": 6,
        "new": {"kept": 1, "quality": 1},
        "gone": {"duplicate": 1},
        "same": 1,
        "to_kept": 1,
        "to_dropped": 1,
        "changed": [
            {"before": "kept", "after": "quality", "n_docs": 1},
            {"before": "quality", "after": "duplicate", "n_docs": 1},
            {"before": "quality", "after": "kept", "n_docs": 1},
        ],
    }


@given(st.dictionaries(st.sampled_from("abcdefgh"), STANDING), st.dictionaries(st.sampled_from("abcdefgh"), STANDING), st.randoms())
def test_counts_add_up_whatever_the_order(before: dict[str, str | None], after: dict[str, str | None], random: object) -> None:
    found = changes(frame(before), frame(after))
    moved = sum(row["n_docs"] for row in found["changed"])
    assert found["n_before"] == found["same"] + moved + sum(found["gone"].values())
    assert found["n_after"] == found["same"] + moved + sum(found["new"].values())
    shuffled = list(after.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert changes(frame(before), frame(dict(shuffled))) == found
    assert changes(frame(before), frame(before))["changed"] == []

"""Revisions: what may be asked for, and what is recorded."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SourceError
from pipeline.raw_evidence import pins
from pipeline.recipe import Fetch

A, B = "a" * 40, "b" * 40
CASE = json.loads((Path(__file__).parents[2] / "cases" / "C30" / "pins.json").read_text())


def test_case_c30() -> None:
    gone, moved, unpinned = CASE["requests"]
    with pytest.raises(
        SourceError, match=r"revision 'no-such-rev' does not exist at the remote; copies of \['rev-a'\] are held and not used"
    ):
        pins.resolve("faq", gone["revision"], remote=gone.get("remote_head"), held=gone["cached"])
    found = pins.resolve("faq", moved["revision"], remote=moved["remote_head"], held=moved["cached"], production=True)
    assert found == "rev-b"
    with pytest.raises(SourceError, match="no revision is asked for, and this is a production run"):
        pins.resolve("faq", unpinned["revision"], remote="rev-b", held=unpinned["cached"], production=True)
    assert pins.resolve("faq", unpinned["revision"], remote="rev-b", held=unpinned["cached"]) == "rev-b"


def test_a_commit_is_answered_by_itself() -> None:
    assert pins.resolve("faq", A, remote=A) == A
    with pytest.raises(SourceError, match=f"commit {A} was asked for, the remote answers with {B}"):
        pins.resolve("faq", A, remote=B, held=[A])


@pytest.mark.parametrize("answer", ["main", "HEAD", "Master", "refs/heads/x", "v1"])
def test_a_name_is_never_recorded(answer: str) -> None:
    with pytest.raises(SourceError, match="expected what the name stands for"):
        pins.resolve("faq", "v1", remote=answer)


def test_production_wants_a_pin_for_data_sets_only() -> None:
    hub = Fetch("hub", dataset="org/name")
    with pytest.raises(SourceError, match="data set org/name is not pinned"):
        pins.require_pin("faq", hub, production=True)
    pins.require_pin("faq", hub, production=False)
    pins.require_pin("faq", Fetch("hub", dataset="org/name", revision="v1"), production=True)
    pins.require_pin("faq", Fetch("https", urls=("https://h/a",)), production=True)


@given(st.sampled_from(["", "main", "v1", A]), st.none() | st.sampled_from(["", "main", A, B]), st.sets(st.sampled_from([A, B])))
def test_what_is_held_decides_nothing(asked: str, remote: str | None, held: set[str]) -> None:
    def outcome(copies: set[str]) -> str | None:
        try:
            return pins.resolve("faq", asked, remote=remote, held=copies)
        except SourceError:
            return None

    assert outcome(held) == outcome(set())
    assert outcome(held) in (None, remote)


@pytest.mark.parametrize(("revision", "answer"), [(A, True), ("f" * 64, True), ("A" * 40, False), ("a" * 39, False), ("main", False)])
def test_commit_ids(revision: str, answer: bool) -> None:
    assert pins.is_commit(revision) is answer

"""Where documents lie in two views, and how their mixtures differ."""

import dataclasses
import json

import polars as pl

from pipeline.run_view.compare import membership, mixture, settings
from runview.manifest import Manifest, parse
from tests.pipeline.run_view.view_fixture import fixture_view, manifest_of


def rows(*places: str) -> pl.DataFrame:
    """`doc component split`, one each."""
    return pl.DataFrame(
        [place.split() for place in places], schema=dict.fromkeys(("doc_id", "component", "split"), pl.String), orient="row"
    )


def test_documents_are_added_removed_and_moved_between_components_and_splits() -> None:
    before = rows("a code train", "b code train", "c prose train", "d prose validation", "e prose train")
    after = rows("a code train", "b prose train", "c prose validation", "d prose validation", "f code train", "g code train")
    assert membership(before, after) == {
        "n_before": 5,
        "n_after": 6,
        "stayed": 2,
        "added": {"code/train": 2},
        "removed": {"prose/train": 1},
        "moved": [
            {"before": "code/train", "after": "prose/train", "n_docs": 1},
            {"before": "prose/train", "after": "prose/validation", "n_docs": 1},
        ],
    }
    same = membership(before, before.reverse())
    assert (same["stayed"], same["added"], same["removed"], same["moved"]) == (5, {}, {}, [])


def manifests() -> tuple[Manifest, Manifest]:
    made, _, _, parts = fixture_view()
    stage = made.view.stages[0]
    other = dataclasses.replace(
        made, view=dataclasses.replace(made.view, seed="abcd", stages=(dataclasses.replace(stage, name="renamed"),))
    )
    return parse(manifest_of(made, parts)), parse(manifest_of(other, parts))


def test_settings_name_what_differs_and_nothing_else() -> None:
    before, after = manifests()
    assert settings(before, before) == {}
    found = settings(before, after)
    assert found["seed"] == {"before": before.seed, "after": "abcd"}
    assert {"geometry", "recipe_id"} < set(found)
    assert not {"seq_len", "tokenizer", "release_id", "attention"} & set(found)
    json.dumps(found)


def test_mixture_has_a_row_for_every_stage_and_component_of_either_view() -> None:
    before, after = manifests()
    rows = mixture(before, before)
    assert rows and all(row["same"] for row in rows)
    assert {row["stage"] for row in rows} == {stage.name for stage in before.stages}
    both = mixture(before, after)
    renamed = [row for row in both if row["stage"] == "renamed"]
    assert renamed and all(row["packs"]["before"] is None and row["packs"]["after"] is not None for row in renamed)
    gone = [row for row in both if row["stage"] == before.stages[0].name]
    assert gone and all(row["packs"]["after"] is None for row in gone)

"""Recipes before they run: what is wrong, what is doubtful, what differs, and what is made anew by it."""

from pathlib import Path

import pytest

from pipeline.recipe import Recipe, parse_recipe
from pipeline.recipe_check import differences, doubts, new_stages, problems
from resources.tokenizers import SHIPPED, TokenizerStore

TEXT = (Path(__file__).parents[1] / "fixtures" / "project" / "recipes" / "small.toml").read_text()


def recipe(old: str = "", new: str = "") -> Recipe:
    assert old in TEXT
    return parse_recipe(TEXT.replace(old, new, 1) if old else TEXT, where="small.toml")


def test_the_fixture_has_no_problem_and_one_doubt() -> None:
    assert problems(recipe()) == []
    assert doubts(recipe(), sources=[]) == ["no component takes documents of kind chat"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('metric = "n_words"', 'metric = "n_wrds"', "did you mean 'n_words'"),
        ('"duplicate", "quality"]', '"quality"]', "each category once, missing ['duplicate']"),
        ('"CC0-1.0", "MIT"', '"CC0-1.0", "MTI"', "'MTI' is neither an SPDX expression"),
        ('kinds = ["math"]', 'kinds = ["maths"]', "component sums: kind 'maths' is none of"),
        ("[duplicates]", '[duplicates]\npriority = ["longest"]', "priority"),
    ],
)
def test_problems_name_the_value(old: str, new: str, message: str) -> None:
    (found,) = problems(recipe(old, new))
    assert message in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kinds = ["math"]', 'kinds = ["math", "code"]', "components code and sums could select the same document"),
        ('languages = ["ko"]', 'languages = ["ja"]', "no component takes prose in language ko"),
        ('name = "code"\n', 'name = "code"\nsources = ["nowhere"]\n', "component code: source nowhere is not in this project"),
        ('[[view.stages]]\nname = "once"\nepochs = 1\n', "", "component code has a share in no stage"),
    ],
)
def test_doubts_say_what_is_probably_not_meant(old: str, new: str, message: str) -> None:
    assert any(message in doubt for doubt in doubts(recipe(old, new), sources=["notes"]))


@pytest.mark.parametrize(
    ("old", "new", "place", "stages"),
    [
        ("bound = 5", "bound = 6", "cleaning.rules[min_words].bound", {"documents": "changed", "clusters": "input changed"}),
        ('seed = "5eed0001"', 'seed = "5eed0002"', "split.seed", {"clusters": "changed", "decisions": "input changed"}),
        ('"duplicate", "quality"', '"quality", "duplicate"', "decisions.priority", {"decisions": "changed", "shards": "input changed"}),
        ("seq_len = 64", "seq_len = 128", "packing.seq_len", {"shards": "changed", "view": "changed"}),
        ("window = 2", "window = 3", "components[code].window", {"view": "changed"}),
        ("global_batch = 4", "global_batch = 8", "view.global_batch", {"view": "changed"}),
    ],
)
def test_a_value_makes_anew_the_stages_that_read_it_and_those_after(old: str, new: str, place: str, stages: dict[str, str]) -> None:
    tokenizer = TokenizerStore().load(SHIPPED)
    before, after = recipe(), recipe(old, new)
    assert list(differences(before, after)) == [place]
    found = new_stages(before, after, tokenizers=(tokenizer, tokenizer))
    assert {stage: found[stage] for stage in stages} == stages
    assert list(found) == ["documents", "clusters", "decisions", "shards", "view"][-len(found) :], "and all that follow"


def test_a_comment_changes_no_value_and_only_the_text_that_the_view_carries() -> None:
    tokenizer = TokenizerStore().load(SHIPPED)
    after = parse_recipe(f"# another comment\n{TEXT}", where="small.toml")
    assert differences(recipe(), after) == {}
    assert new_stages(recipe(), after, tokenizers=(tokenizer, tokenizer)) == {"view": "changed"}
    assert new_stages(after, after, tokenizers=(tokenizer, tokenizer)) == {}


def test_a_component_that_comes_or_goes_is_named() -> None:
    text = TEXT.replace('name = "sums"\n', 'name = "numbers"\n').replace("sums = 0.2", "numbers = 0.2")
    found = differences(recipe(), parse_recipe(text, where="small.toml"))
    assert found["components[sums].kinds"] == {"before": ["math"], "after": None}
    assert found["components[numbers].kinds"] == {"before": None, "after": ["math"]}
    assert found["components (order)"]["after"][-1] == "numbers"

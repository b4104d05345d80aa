"""Recipes, sources and releases: exact decimals, one canonical form, errors that name the nearest key."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecipeError
from pipeline.recipe import parse_recipe, parse_release, parse_source, source_from_identity, to_json

SOURCE = 'name = "faq"\nreader = "text"\nlocation = "faq"\nconsent_basis = "test"\n'


def test_a_source_keeps_its_identity_but_not_its_place() -> None:
    here = parse_source(SOURCE, where="faq.toml")
    there = parse_source(SOURCE.replace('location = "faq"', 'location = "elsewhere"'), where="faq.toml")
    assert here.identity() == there.identity()
    assert "location" not in here.identity()
    back = source_from_identity(here.identity())
    assert back.identity() == here.identity()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('licnce = "MIT"', "unknown key 'licnce', did you mean 'licence'"),
        ('zzz = "MIT"', "unknown key 'zzz'; known are"),
        ("max_incomplete_files = true", "max_incomplete_files must be int, found bool"),
        ('select = "cod"', "select = 'cod' is not known, did you mean 'code'"),
        ("snapshot = 3", "snapshot must be date, found int"),
        ('[fields]\nbody = "x"', r"fields.body is not known"),
        ('name = "again"', "not valid TOML"),
    ],
)
def test_source_errors(line: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"faq.toml: .*{message}"):
        parse_source(SOURCE + line, where="faq.toml")


def test_a_missing_key_and_a_bad_name_are_named() -> None:
    with pytest.raises(RecipeError, match="missing key 'consent_basis'"):
        parse_source('name = "a"\nreader = "text"\nlocation = "x"', where="a.toml")
    with pytest.raises(RecipeError, match="name 'A b' must match"):
        parse_source(SOURCE.replace('"faq"\nreader', '"A b"\nreader'), where="a.toml")


def test_release_members_stand_once() -> None:
    text = 'name = "r"\nrecipe = "default"\nmembers = [{source = "a", dates = [2026-01-01]}, {source = "a", dates = [2026-01-01]}]'
    with pytest.raises(RecipeError, match="stand twice"):
        parse_release(text, where="r.toml")
    with pytest.raises(RecipeError, match=r"unknown key 'members\[0\].date', did you mean 'dates'"):
        parse_release('name = "r"\nrecipe = "d"\nmembers = [{source = "a", date = [2026-01-01]}]', where="r.toml")


def test_unknown_recipe_key_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="unknown key 'packng', did you mean 'packing'"):
        parse_recipe('name = "r"\n[packng]\nseq_len = 1', where="r.toml")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-1000, max_value=1000))
def test_decimals_have_one_text(number: Decimal) -> None:
    text = to_json(number)
    assert Decimal(text) == number
    assert to_json(Decimal(text + "0" if "." in text else text + ".0")) == text

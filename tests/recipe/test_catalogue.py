"""The catalogue says of every packaged recipe what it is and where it has been verified."""

import re
from pathlib import Path

import pytest

from dapo_cli.recipe.catalogue import catalogue, entry
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize("name", packaged_names())
def test_every_recipe_says_when_and_on_what_it_ran_or_that_it_never_did(name):
    found = entry(name)
    assert found.purpose.endswith(".")
    assert re.match(r"\d{4}-\d\d-\d\d, .*(core|GPU).*: |never run \(needs ", found.verified), found.verified


def test_the_page_is_what_the_recipes_say():
    assert PAGE.read_text(encoding="utf-8") == catalogue()


def test_the_page_names_the_cards_that_are_not_shipped_and_the_recipes_that_want_them():
    entries = {name: entry(name) for name in packaged_names()}
    assert entries["demo"].missing == ()
    cards = {path.stem for kind in ("data", "evals") for path in (PAGE.parents[1] / kind).glob("*.yaml")}
    for name, found in entries.items():
        recipe = load_recipe(name).recipe
        assert {card.split("/")[1] for card in found.missing} == {recipe.dataset.name, recipe.eval.benchmark} - cards
        last = catalogue().splitlines()[-1]
        assert (f"`{name}`" in last.partition("Not shipped yet:")[2]) == bool(found.missing)

# ruff: noqa: E501 (a case and its message on one line)
"""Contradictions within the section dataset, and between it, the prompt and the scorers."""

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.loading import load_recipe

TWO = "[{name: toy_sums}, {name: one_digit_sums}]"


@pytest.mark.parametrize(
    ("dataset", "rest", "expected"),
    [
        ("{name: mix, source: a.jsonl, parts: " + TWO + "}", "", "dataset.source: belongs to one dataset, and dataset.parts names several; put it into the part that it is meant for"),
        ("{name: mix, parts: [{name: toy_sums}, {name: toy_sums}]}", "", "dataset.parts: 'toy_sums' is there twice; give each part a name of its own: metrics go by it"),
        ("{name: mix, parts: [{name: toy_sums, weight: 1}, {name: one_digit_sums}]}", "", "dataset.parts: some parts have a weight and others have none; give every part a weight, or none: then they are drawn by their numbers of problems"),
        ("{name: mix, parts: [{name: a/b}]}", "", "dataset.parts: 'a/b' cannot be the name of a folder; use up to 100 letters, digits, dots, dashes and underscores"),
        ("{name: mix, parts: [{name: toy_sums, scorer: boxd}]}", "", "dataset.parts: 'boxd' is neither dapo, dapo_2026_08, boxed, integer, math_verify nor module:function; did you mean boxed?"),
        ("{name: mix, parts: [{name: toy_sums, scorer: boxed}]}", "", "dataset.parts: the prompt asks for Answer: and the scorer of toy_sums reads only \\boxed: every answer would be missed; use one of dapo, dapo_2026_08, integer, math_verify, or another template"),
        ("{name: toy_sums}", "prompt: {template: boxed}\n", "prompt.template: the prompt asks for \\boxed and the scorer reads only Answer:: every answer would be missed; use one of dapo_2026_08, boxed, integer, math_verify, or another template"),
        ("{name: mix, parts: [{name: toy_sums, heldout_problems: 0}, {name: gsm8k, heldout_problems: 0}]}", "", "dataset.heldout_problems: eval.benchmark: heldout has no problems to evaluate when none are set apart; set some apart, name another benchmark, or turn before_training, after_training and every off"),
    ],
)  # fmt: skip
def test_a_contradiction_of_datasets_is_refused_with_a_way_out(write_recipe, dataset, rest, expected):
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe(("{name: toy_sums}", dataset), ("", rest)))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "rest"),
    [
        ("{name: mix, parts: " + TWO + "}", ""),
        ("{name: mix, parts: [{name: toy_sums, weight: 2}, {name: one_digit_sums, weight: 1, scorer: [boxed, dapo]}]}", ""),
        # no part is left to reward.scorer, so that it may read what it likes
        ("{name: mix, parts: [{name: toy_sums, scorer: boxed}]}", "prompt: {template: boxed}\n"),
        ("{name: toy_sums}", "prompt: {template: boxed}\nreward: {scorer: math_verify}\n"),
    ],
)  # fmt: skip
def test_what_fits_together_is_accepted(write_recipe, dataset, rest):
    load_recipe(write_recipe(("{name: toy_sums}", dataset), ("", rest)))

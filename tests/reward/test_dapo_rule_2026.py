import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_formats import HOSTILE, ODD_FORMATS

from dapo_cli.reward import dapo_rule
from dapo_cli.reward.dapo_rule_2026 import score


@pytest.mark.parametrize("case", ODD_FORMATS, ids=lambda case: case["id"])
def test_verdicts_of_both_public_rules(case):
    assert (dapo_rule.score(case["response"], case["ground_truth"]).outcome == "right") is case["dapo"]
    assert (score(case["response"], case["ground_truth"]).outcome == "right") is case["dapo_2026_08"]


def test_an_answer_line_decides_even_if_it_is_wrong_and_the_box_right():
    assert score("\\boxed{34}\nAnswer: 35", "34").prediction == "35"


@pytest.mark.parametrize(("trailing", "outcome"), [(89, "right"), (90, "no_answer")])
def test_the_box_must_begin_in_the_last_100_characters(trailing, outcome):
    # \boxed{34} has 10 characters and must lie wholly in the window of 100.
    assert len(r"\boxed{34}") == 10
    assert score(r"\boxed{34}" + "x" * (trailing + 1), "34").outcome == outcome


@pytest.mark.parametrize(
    ("response", "ground_truth", "outcome"),
    [
        (r"\boxed{\frac12}", r"\frac{1}{2}", "right"),
        (r"\boxed{34", "34", "no_answer"),
        (r"\boxed{1} \boxed{34", "1", "no_answer"),  # the last box decides, closed or not
        (r"\boxed 34", "34", "no_answer"),
        (r"\fbox{34}", "34", "no_answer"),
        ("Answer: [INVALID] \\boxed{34}", "34", "wrong"),  # the line is taken whole, and is not [INVALID] alone
        ("\\boxed{34}\nAnswer: [INVALID]", "34", "right"),
        ("nothing", "[INVALID]", "no_answer"),
    ],
)
def test_the_fallback(response, ground_truth, outcome):
    assert score(response, ground_truth).outcome == outcome


@settings(deadline=None)
@given(st.text(), st.text())
def test_without_a_box_it_is_the_rule_of_2025(response, ground_truth):
    response = response.replace("\\boxed{", "")
    assert score("Answer: " + response, ground_truth) == dapo_rule.score("Answer: " + response, ground_truth)


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_responses_are_not_right(response):
    assert score(response, "34").score == -1.0

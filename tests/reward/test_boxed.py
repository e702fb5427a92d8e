import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_formats import HOSTILE

from dapo_cli.reward.boxed import score
from dapo_cli.reward.final_answer import ANSWER_CHARACTERS


@pytest.mark.parametrize(
    ("response", "ground_truth", "outcome"),
    [
        (r"\boxed{42}", "42", "right"),
        (r"\boxed{43}", "42", "wrong"),
        ("plain 42", "42", "no_answer"),
        (r"\boxed{41} no, \boxed{42}", "42", "right"),
        (r"\boxed{42} no, \boxed{41}", "42", "wrong"),
        (r"\boxed{42} no, \boxed{41", "42", "no_answer"),
        (r"\fbox{42}", "42", "right"),
        (r"\boxed 42", "42", "right"),
        (r"\boxed {42}", "42", "right"),
        (r"\boxedx{42}", "42", "no_answer"),
        (r"\boxed{\dfrac{\sqrt3}{2}}", r"\frac{\sqrt{3}}{2}", "right"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", "right"),
        (r"\boxed{42}", r"\boxed{42}", "right"),
        (r"\boxed{x = 1{,}007}", "1007", "right"),
        ("Answer: 42", "42", "no_answer"),
    ],
)
def test_verdict(response, ground_truth, outcome):
    assert score(response, ground_truth).outcome == outcome


def test_only_the_last_4000_characters_count():
    box = r"\boxed{42}"
    assert score(box + "x" * (ANSWER_CHARACTERS - len(box)), "42").outcome == "right"
    assert score(box + "x" * (ANSWER_CHARACTERS - len(box) + 1), "42").outcome == "no_answer"


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_responses_are_not_right(response):
    assert score(response, "34").score == -1.0


@settings(deadline=None)
@given(st.text(max_size=2000), st.integers())
def test_a_boxed_integer_is_right_after_any_reasoning(reasoning, answer):
    assert score(f"{reasoning} \\boxed{{{answer}}}", str(answer)).outcome == "right"
    assert score(f"{reasoning} \\boxed{{{answer}}}", str(answer + 1)).outcome == "wrong"

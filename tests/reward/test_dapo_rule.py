import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dapo_cli.reward.dapo_rule import answer_example, extract, normalise, score

HERE = Path(__file__).parent


def read_cases(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


GOLDEN = read_cases(HERE / "cases" / "golden_table.jsonl")
OTHER_PROJECTS = read_cases(HERE.parent / "cases" / "dapo_scorer_cases.jsonl")


@pytest.mark.parametrize("case", GOLDEN + OTHER_PROJECTS, ids=lambda case: case["response"][:30])
def test_verdict_of_the_public_rule(case):
    verdict = score(case["response"], case["ground_truth"])
    assert (verdict.outcome == "right") is case["right"]
    assert verdict.score == (1.0 if case["right"] else -1.0)
    if "prediction" in case:
        assert verdict.prediction == case["prediction"]


@pytest.mark.parametrize(("trailing", "outcome"), [(289, "right"), (290, "no_answer"), (293, "no_answer")])
def test_only_the_last_300_characters_count(trailing, outcome):
    # "Answer: 34\n" has 11 characters: with 289 more it is the whole window, with 290 its "A" falls out.
    assert score("Answer: 34\n" + "x" * trailing, "34").outcome == outcome


def test_no_answer_is_told_apart_from_a_wrong_one():
    assert score("I do not know.", "34").outcome == "no_answer"
    assert score("Answer: 35", "34").outcome == "wrong"
    assert score("nothing", "[INVALID]").outcome == "no_answer"


def test_last_line_wins_and_a_line_is_taken_whole():
    assert extract("Answer: 1\nAnswer: 2") == "2"
    assert extract("Answer: 1 no, Answer: 2") == "1 no, Answer: 2"
    assert extract("no such line") is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("m + n = 34", "34"),
        ("$12$ or $13$", "12"),
        (r"\text{even}", "even"),
        (r"\textbf{34}", "34"),
        (r"\overline{AB}", "AB"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"\mbox{m}34", "34"),
        (r"5\text{and}6", "56"),
        ("1,2,x", "1,2,x"),
        ("12,345,678", "12345678"),
        (r"12\text{cm}^2", "12"),
        ("issue", "is"),
        ("", ""),
    ],
)
def test_normalise(answer, expected):
    assert normalise(answer) == expected


@pytest.mark.parametrize(
    "response",
    [
        "Answer: " + "9" * 5000,
        "\\boxed{" * 3000,
        "Answer: " + "$" * 250,
        "Answer: " + "\\boxed{" * 40,
        "answer" * 50 + ":" + " " * 200,
        "Answer: 10^{10^{10}}",
        "Answer: \ud800",
        "Answer: 34\x00",
    ],
)
def test_hostile_responses_are_not_right(response):
    assert score(response, "34").score == -1.0


@settings(deadline=None)
@given(st.text(), st.text())
def test_never_raises_and_scores_one_or_minus_one(response, ground_truth):
    verdict = score("Answer: " + response, ground_truth)
    assert verdict.score == (1.0 if verdict.outcome == "right" else -1.0)


@settings(deadline=None)
@given(st.text(max_size=2000), st.integers())
def test_integer_in_the_prompts_format_is_right_after_any_reasoning(reasoning, answer):
    # An answer line left empty takes the next line as its answer: part of the public rule.
    assume(not re.search(r"answer\s*:\s*$", reasoning, re.IGNORECASE))
    response = f"{reasoning}\n{answer_example(str(answer))}"
    assert score(response, str(answer)).outcome == "right"
    assert score(response, str(answer + 1)).outcome == "wrong"

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_formats import HOSTILE, ODD_FORMATS

from dapo_cli.reward.integer import clean, read_integer, score

INTEGERS = [case for case in ODD_FORMATS if read_integer(clean(case["ground_truth"])) is not None]


@pytest.mark.parametrize(
    "case", [case for case in INTEGERS if case["careful"] is not None], ids=lambda case: case["id"]
)
def test_the_verdict_is_a_careful_readers(case):
    assert (score(case["response"], case["ground_truth"]).outcome == "right") is case["careful"]


POLICY = {
    "arabic_digits": "right",  # digits are digits in every script
    "same_line_two": "right",  # the last answer line begins in the middle of a line
    "base_sub": "wrong",
    "expr_unexpanded": "wrong",  # nothing is computed
    "expr_binom": "wrong",
    "control": "right",
    "answer_no_colon": "no_answer",
    "cn_answer": "right",
    "boxed_nobrace": "right",
    "frac_unreduced": "wrong",
}


@pytest.mark.parametrize("case", [case for case in INTEGERS if case["careful"] is None], ids=lambda case: case["id"])
def test_where_it_is_a_matter_of_policy(case):
    assert score(case["response"], case["ground_truth"]).outcome == POLICY[case["id"]]


def test_no_case_is_left_out():
    assert len(INTEGERS) == 60
    assert {case["id"] for case in INTEGERS if case["careful"] is None} == set(POLICY)


@pytest.mark.parametrize(
    ("answer", "integer"),
    [
        ("34<|im_end|>", "34"),
        ("034", "34"),
        ("-034.00", "-34"),
        ("- 7", "-7"),
        ("+7", "7"),
        ("1,234,567", "1234567"),
        ("12 345", "12345"),
        ("1234 567", None),
        ("3,5", None),
        ("3 4", None),
        ("1e3", "1000"),
        ("1.5e1", "15"),
        ("1.55e1", None),
        ("100e-2", "1"),
        ("10e-2", None),
        ("0e-5", "0"),
        (r"2 \times 10^{3}", "2000"),
        (r"$\text{The answer is } 5$", "5"),
        ("5 cm^2", "5"),
        ("x = 5", "5"),
        ("5 = x", "5"),
        ("5 or 6", None),
        ("5 or 5", "5"),
        ("10-3", None),
        ("x-5", None),
        ("x - 5", None),
        ("the answer is -5", "-5"),
        ("the three-digit number 204", "204"),
        ("2x", None),
        ("H2O 5", None),
        ("½", None),
        ("2²", None),
        ("1/1", None),
        ("$5", "5"),
        ("5%", "5"),
        ("(5)", "5"),
        ("(1, 5)", None),
        ("", None),
        ("infinity", None),
    ],
)
def test_reading_an_integer(answer, integer):
    assert read_integer(clean(answer)) == integer


def test_a_ground_truth_that_is_no_integer_is_no_wrong_answer():
    verdict = score("Answer: 34", r"\frac{1}{2}")
    assert (verdict.outcome, verdict.score) == ("verifier_error", 0.0)
    assert "not an integer" in verdict.error


def test_integers_of_any_length_are_compared_without_computing_them():
    assert score("Answer: " + "9" * 3000, "9" * 3000).outcome == "right"
    assert score("Answer: " + "9" * 2999 + "8", "9" * 3000).outcome == "wrong"


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_responses_are_not_right(response, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert score(response, "34").outcome in ("wrong", "no_answer")
    assert list(tmp_path.iterdir()) == []


WAYS = (
    "Answer: {}",
    "**Answer:** {}",
    "**Answer: {}**",
    "Answer: ${}$.",
    "answer : {}.0",
    "\\boxed{{{}}}",
    "Answer:\n{}",
)


@settings(deadline=None)
@given(st.integers(), st.integers(1, 3), st.sampled_from(WAYS), st.text(max_size=200))
def test_every_way_of_writing_gives_the_same_verdict(number, zeros, way, reasoning):
    sign, digits = ("-", str(-number)) if number < 0 else ("", str(number))
    response = f"{reasoning}\n" + way.format(f"{sign}{'0' * zeros}{digits}")
    assert score(response, str(number)).outcome == "right"
    assert score(response, str(number + 1)).outcome == "wrong"


@settings(deadline=None)
@given(st.text(), st.text())
def test_never_raises(response, ground_truth):
    assert score("Answer: " + response, ground_truth).outcome in ("right", "wrong", "no_answer", "verifier_error")
    assert score(f"\\boxed{{{response}}}", "7").outcome in ("right", "wrong", "no_answer")

import sys

import pytest

from dapo_cli.reward import symbolic

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("response", "ground_truth", "outcome"),
    [
        ("Answer: 1/2", r"\frac{1}{2}", "right"),
        ("Answer: 0.5", r"\frac12", "right"),
        (r"\boxed{\frac{408}{2}}", "204", "right"),
        (r"Answer: $\{3, 1, 2\}$", r"\{1,2,3\}", "right"),
        (r"\boxed{1} and \boxed{2}", r"\{1,2\}", "right"),
        (r"\boxed{(1,2]}", "(1,2]", "right"),
        (r"\boxed{(1,2]}", "[1,2)", "wrong"),
        (r"\boxed{(1,2)}", "(2,1)", "wrong"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", "right"),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", "right"),
        ("First $3$.\nAnswer: 4/2", "2", "right"),  # the answer line counts, not the last formula before it
        ("Answer: 2/0", "2", "wrong"),
        ("I do not know.", "2", "no_answer"),
    ],
)
def test_answers_are_compared_as_mathematics(response, ground_truth, outcome):
    assert symbolic.judge(response, ground_truth)["outcome"] == outcome


@pytest.mark.parametrize(
    ("response", "ground_truth", "outcome"),
    [
        ("Answer: 204", "204", "right"),
        ("Answer: $204$.", "0204", "right"),
        (r"\boxed{-3}", "-3", "right"),
        (r"\boxed{3}", r"\boxed{3}", "right"),
        ("Answer: 205", "204", "wrong"),
    ],
)
def test_integers_agree_with_the_library_and_do_not_need_it(response, ground_truth, outcome):
    assert symbolic.fast_verdict(response, ground_truth)["outcome"] == outcome
    assert symbolic.judge(response, ground_truth)["outcome"] == outcome


@pytest.mark.parametrize(
    "response", [r"\boxed{1} and \boxed{3}", "Answer: 3.0", "Answer: 3 cm", "3", "Answer: " + "9" * 41]
)
def test_what_is_no_single_plain_integer_is_left_to_the_library(response):
    assert symbolic.fast_verdict(response, "3") is None
    assert symbolic.fast_verdict("Answer: 3", "3.0") is None


def test_a_ground_truth_that_cannot_be_read_is_no_wrong_answer():
    reply = symbolic.judge("Answer: 3", "")
    assert (reply["outcome"], "cannot be parsed" in reply["error"]) == ("verifier_error", True)


def test_arithmetic_is_built_and_not_evaluated():
    tower = symbolic.arithmetic("9**9**9**9")  # evaluated, it would not fit into any memory
    assert str(tower) == "9**(9**(9**9))"
    assert symbolic.arithmetic("1 - 2*3/4").doit() == symbolic.arithmetic("-1/2").doit()


@pytest.mark.parametrize(
    "text", ["open('owned')", "x", "(1).__class__", "[1]", "1 if 1 else 2", "True", "'a'*9", "1<2"]
)
def test_nothing_but_numbers_and_their_operators_is_arithmetic(text):
    with pytest.raises(ValueError, match="not arithmetic"):
        symbolic.arithmetic(text)


def test_the_librarys_use_of_pythons_parser_is_replaced():
    symbolic.load()
    assert sys.modules["math_verify.parser"].parse_expr is symbolic.arithmetic

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dapo_cli.cli import app
from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Reward
from dapo_cli.reward import dapo_rule
from dapo_cli.reward.explain import explain, render
from dapo_cli.reward.scoring import judge_all
from dapo_cli.types import Problem

RESPONSES = ("So\nAnswer: $m+n = 1{,}007$", "**Answer: 0204.0 minutes**<|im_end|>", r"\boxed{\dfrac12}", "what?", "")


@settings(deadline=None)
@given(st.text() | st.sampled_from(("$m = 1{,}007$ cm", r"x=\frac12", "$1,2$ and $3$", r"\text{a}\boxed{,1}")))
def test_the_steps_end_where_the_rule_does(answer):
    steps = dapo_rule.normalisation_steps(answer)
    assert steps[0][1] == answer
    assert steps[-1][1] == dapo_rule.normalise(answer)


@pytest.mark.parametrize("scorer", ["dapo", "dapo_2026_08", "boxed", "integer", ("dapo", "boxed"), ("integer", "dapo")])
@pytest.mark.parametrize("response", RESPONSES)
def test_the_last_explanation_has_the_verdict_of_scoring(scorer, response):
    for ground_truth in ("1007", "204", r"\frac{1}{2}"):
        reward = Reward(scorer=scorer)
        last = explain(response, ground_truth, reward)[-1]
        (verdict,) = judge_all([(response, Problem("", "", (), ground_truth, ""))], reward)
        if last.verdict.outcome in ("right", "wrong") or not isinstance(scorer, tuple):
            assert last.verdict == verdict
        if last.place is not None:
            assert response[slice(*last.place)] == last.answer_steps[0][1]


def shown(response, ground_truth, scorer):
    console = Console(width=80, record=True, file=io.StringIO())
    for explanation in explain(response, ground_truth, Reward(scorer=scorer)):
        console.print(render(explanation))
    return console.export_text()


def test_what_is_shown_for_the_rule():
    text = shown("So\nAnswer: m = 1,007 cm", "1007", "dapo")
    assert "found: at character 11 of 23" in text
    assert "So\\nAnswer: »m = 1,007 cm«" in text
    assert "1007  [commas of a number]" in text
    assert "verdict: right, score +1" in text


def test_a_fallback_is_explained_where_it_was_found():
    text = shown(r"It is \boxed{35}", "34", "dapo_2026_08")
    assert r"It is \boxed{»35«}" in text
    assert "verdict: wrong, score -1" in text


def test_nothing_found_and_a_failure_are_told_apart():
    assert "found: nothing" in shown("what?", "34", "dapo")
    assert "verdict: verifier_error, score +0 (the ground truth 'x' is not an integer)" in " ".join(
        shown("Answer: 3", "x", "integer").split()
    )


def test_what_the_library_reads_is_shown():
    pytest.importorskip("math_verify")
    text = shown(r"\boxed{\frac{2}{4}}", "1/2", "math_verify")
    assert "1/2 (Half)" in text
    assert "verdict: right" in text


def test_hostile_text_cannot_disturb_the_terminal():
    text = shown("Answer: \x1b[2J[bold]x[/]\x07", "34", "dapo")
    assert "\x1b[2J" not in text.replace("\\x1b[2J", "")
    assert "[bold]x[/]" in text


def run(*arguments, **options):
    return CliRunner().invoke(app, ["reward", "explain", *arguments], **options)


def test_text_from_the_line_from_input_and_from_a_file(tmp_path):
    (tmp_path / "response.txt").write_text("Answer: 34")
    for result in (
        run("Answer: 34", "--gold", "34"),
        run("-", "--gold", "34", input="Answer: 34"),
        run("--file", str(tmp_path / "response.txt"), "--gold", "34"),
    ):
        assert result.exit_code == 0
        assert "verdict: right" in result.output
    assert run("Answer: 35", "--gold", "34").exit_code == 0


def test_bad_arguments_are_refused():
    assert run("x").exit_code == 2
    assert isinstance(run("--gold", "34").exception, UsageError)
    assert "did you mean boxed?" in run("x", "--gold", "34", "--scorer", "boxd").exception.hint

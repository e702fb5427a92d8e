"""Before step 1: the scorer tells right from wrong in the prompt's own format, and pass rates come with remedies."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedGenerator, collector
from tiny import tiny_recipe

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import FewShotExample, Prompt, Reward
from dapo_cli.reward.pool import close_pools
from dapo_cli.run import preflight
from dapo_cli.run.preflight import check_scorer, describe_pass_rates
from dapo_cli.types import Problem, Verdict


def problem(answer):
    return Problem("id", "text", (), answer, "test")


def check(answers=("7",), prompt=None, reward=None):
    notes = []
    check_scorer([problem(answer) for answer in answers], prompt or Prompt(), reward or Reward(), notes.append)
    return notes


def test_integers_fractions_and_large_numbers_pass():
    assert check(("7", "-3", "1007", r"\frac{1}{2}", "x+1")) == []


def test_ground_truths_that_a_scorer_cannot_tell_from_wrong_answers_are_named(monkeypatch):
    def all_right(cases, reward):
        return [Verdict(1.0, "right", None) for _ in cases]

    def all_wrong(cases, reward):
        return [Verdict(-1.0, "wrong", "x") for _ in cases]

    monkeypatch.setattr(preflight, "judge_all", all_right)
    with pytest.raises(VerificationError, match=r"2 of 2 ground truths cannot be told right from wrong.*'7', '8'"):
        check(("7", "8"))
    monkeypatch.setattr(preflight, "judge_all", all_wrong)
    with pytest.raises(VerificationError, match="1 of 1"):
        check()


@pytest.mark.parametrize("scorer", ["dapo_2026_08", "boxed", "integer", ("integer", "dapo")])
def test_every_named_scorer_tells_integers_right_from_wrong_in_its_own_format(scorer):
    prompt = Prompt(template="{problem} Answer: X or \\boxed{X}")
    assert check(("7", "-3", "1007", "0"), prompt, Reward(scorer=scorer)) == []


def test_ground_truths_that_are_no_integers_are_refused_for_the_integer_scorer():
    with pytest.raises(VerificationError, match=r"integer: 1 of 2 ground truths .*frac"):
        check(("7", r"\frac{1}{2}"), reward=Reward(scorer="integer"))
    assert check(("7", r"\frac{1}{2}"), reward=Reward(scorer=("integer", "dapo"))) == []


def test_few_shot_answers_that_the_scorer_cannot_read_are_refused():
    example = FewShotExample(problem="1 + 1?", answer="it is 2")
    with pytest.raises(VerificationError, match="finds no answer in 1 of 1 examples, such as 'it is 2'"):
        check(prompt=Prompt(few_shot=(example,)))
    assert check(prompt=Prompt(few_shot=(example,)), reward=Reward(response_prefix="Answer:")) == []
    good = FewShotExample(problem="1 + 1?", answer="it is 2\nAnswer: 2")
    assert check(prompt=Prompt(few_shot=(good,))) == []


def test_a_prompt_that_never_shows_the_answer_format_is_noted():
    assert check(prompt=Prompt(template="{problem} Put the answer in a box.")) == [
        "the prompt nowhere says 'Answer:', which reward.scorer dapo looks for"
    ]
    assert check(prompt=Prompt(template="problem", system="End with Answer: X")) == []


def described(right, count=20, **rollout):
    recipe = tiny_recipe(rollout={"max_response_tokens": 16, "group_size": 4} | rollout)
    groups = collector(recipe, ScriptedGenerator(right)).sample(count)
    return describe_pass_rates(groups, recipe)


def test_pass_rates_are_measured_over_informative_groups():
    metrics, text = described(lambda index: index % 5)
    assert metrics == {"preflight/accuracy": 0.5, "preflight/informative_fraction": 0.6}
    assert text == ("pre-flight: 20 problems, accuracy 50.0%, 60% informative (0/4: 4, 1/4: 4, 2/4: 4, 3/4: 4, 4/4: 4)")


@pytest.mark.parametrize(
    ("right", "advice"), [(0, "the problems are too hard: easier problems"), (4, "the problems are too easy: harder")]
)
def test_below_a_tenth_informative_the_remedies_are_named(right, advice):
    metrics, text = described(lambda index: 2 if index == 0 else right)
    assert metrics["preflight/informative_fraction"] == 0.05
    assert "fewer than 10% of groups are informative" in text
    assert advice in text
    assert "rollout.group_size" in text


def test_at_a_tenth_no_remedies_are_named():
    assert "fewer than" not in described(lambda index: 2 if index < 2 else 0)[1]


def test_unreadable_and_truncated_responses_are_named_as_the_reason():
    recipe = tiny_recipe()
    generator = ScriptedGenerator(lambda index: 0)
    make = generator.group

    def unreadable(request):
        group = make(request)
        cut = {"response": "I think", "finish_reason": "length", "response_ids": np.array([4, 5], dtype=np.int32)}
        return replace(group, rollouts=tuple(replace(rollout, **cut) for rollout in group.rollouts))

    generator.group = unreadable
    _, text = describe_pass_rates(collector(recipe, generator).sample(4), recipe)
    assert "100% of responses hold no answer the scorer can read: look at prompt.template" in text
    assert "100% of responses are cut at rollout.max_response_tokens" in text


def test_a_scorer_that_fails_on_every_response_ends_the_run_before_it_begins():
    recipe = tiny_recipe()
    groups = collector(recipe, ScriptedGenerator(lambda index: 0)).sample(4)
    broken = Verdict(0.0, "verifier_error", None, "ValueError: odd")
    failing = [replace(g, rollouts=tuple(replace(r, verdict=broken) for r in g.rollouts)) for g in groups]
    with pytest.raises(VerificationError, match=r"no verdict on any of the 16 responses .* ValueError: odd"):
        describe_pass_rates(failing, recipe)
    _, text = describe_pass_rates([*failing[:3], groups[3]], recipe)
    assert text.startswith("pre-flight: 4 problems")


def test_a_scorer_of_the_users_own_is_called_once(tmp_path, monkeypatch):
    (tmp_path / "preflight_scorer.py").write_text(
        "def good(response, ground_truth, problem):\n    return response == ground_truth\n"
        "def bad(response, ground_truth, problem):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    assert check(("7", "x"), Prompt(template="problem"), Reward(scorer="preflight_scorer:good")) == []
    with pytest.raises(
        VerificationError, match="preflight_scorer:bad gives no verdict on a first response: ValueError"
    ):
        check(reward=Reward(scorer="preflight_scorer:bad"))
    with pytest.raises(UsageError, match="preflight_scorer:none cannot be loaded: ImportError"):
        check(reward=Reward(scorer="preflight_scorer:none"))
    close_pools()


def test_math_verify_tells_formulas_from_wrong_ones():
    pytest.importorskip("math_verify")
    answers = ("7", r"\frac{1}{2}", "x+1", "(1,2]", r"2\sqrt{3}", "0")
    assert check(answers, reward=Reward(scorer="math_verify")) == []
    close_pools()

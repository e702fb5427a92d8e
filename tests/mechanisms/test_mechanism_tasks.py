"""The tasks: what is asked, what is shown, and that the paper's scorer agrees with both."""

from __future__ import annotations

import random

import pytest

from dapo_cli.mechanisms.definition import find_mechanism, load_definition, mechanism_names
from dapo_cli.mechanisms.schema import Loops, ManyAnswers, MixedDifficulty, RareBranch, Task
from dapo_cli.mechanisms.scorers import three_right_digits
from dapo_cli.mechanisms.tasks import FILLER, build_task, measured_problems
from dapo_cli.reward.dapo_rule import score
from dapo_cli.toy.tokenizer import build_tokenizer

RARE = RareBranch(kind="rare_branch", branch_probability=0.01)
MANY = ManyAnswers(kind="many_answers")
MIXED = MixedDifficulty(kind="mixed_difficulty", solved=0.4, impossible=0.4, learnable_accuracy=0.28)
LOOPS = Loops(kind="loops", loop_probability=0.3, leave_probability=0.03, accuracy=0.6, loop_accuracy=0.1)


def shown(task: Task, count: int = 4000) -> list[tuple[str, bool, float]]:
    """Responses of late demonstrations: text, whether the scorer of the paper calls it right, weight of its start."""
    chance, built = random.Random(0), build_task(task)
    found = []
    for _ in range(count):
        problem = chance.choice(built.problems)
        each = built.demonstrate(problem, chance, 0.9)
        verdict = score(f"Answer: {each.response}", problem.ground_truth)
        found.append((each.response, verdict.outcome == "right", each.first_weight))
    return found


def test_the_rare_branch_is_always_right_and_weighs_what_it_should() -> None:
    branch = [(right, weight) for response, right, weight in shown(RARE) if response.startswith("=")]
    everything = sum(weight for _, _, weight in shown(RARE))
    assert all(right for right, _ in branch)
    assert sum(weight for _, weight in branch) / everything == pytest.approx(0.01, rel=0.1)


def test_a_direct_answer_is_seldom_right() -> None:
    direct = [right for response, right, _ in shown(RARE) if not response.startswith("=")]
    assert sum(direct) / len(direct) < 0.12


def test_a_hundred_of_a_thousand_answers_are_right() -> None:
    verdicts = [three_right_digits(f"{number:03}", "any", {})["score"] for number in range(1000)]
    assert (verdicts.count(1.0), verdicts.count(-1.0)) == (100, 900)


@pytest.mark.parametrize("response", ["", "01", "0123", "0 1", "a12"])
def test_what_is_no_triple_is_wrong(response: str) -> None:
    assert three_right_digits(response, "any", {})["score"] == -1.0


def test_problems_are_solved_impossible_or_learnable_in_the_shares_asked_for() -> None:
    kinds = [problem.text[0] for problem in build_task(MIXED).problems]
    assert [kinds.count(kind) / len(kinds) for kind in "sit"] == [0.4, 0.4, 0.2]


def test_no_demonstration_solves_an_impossible_problem() -> None:
    built, chance = build_task(MIXED), random.Random(0)
    impossible = [problem for problem in built.problems if problem.text[0] == "i"]
    answers = [built.demonstrate(problem, chance, 0.9).response for problem in impossible]
    assert not any(
        score(f"Answer: {text}", problem.ground_truth).outcome == "right"
        for text, problem in zip(answers, impossible, strict=True)
    )


def test_loops_are_as_frequent_and_as_wrong_as_asked_for() -> None:
    loops = [right for response, right, _ in shown(LOOPS) if response.startswith(FILLER)]
    direct = [right for response, right, _ in shown(LOOPS) if not response.startswith(FILLER)]
    assert len(loops) / 4000 == pytest.approx(0.3, abs=0.03)
    assert sum(loops) / len(loops) == pytest.approx(0.1, abs=0.03)
    assert sum(direct) / len(direct) == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("task", [RARE, MANY, MIXED, LOOPS], ids=lambda task: task.kind)
def test_every_character_is_one_token(task: Task) -> None:
    tokenizer, built = build_tokenizer(), build_task(task)
    problem = built.problems[-1]
    response = built.demonstrate(problem, random.Random(1), 0.9).response
    assert len(tokenizer(response).input_ids) == len(response)
    assert tokenizer.decode(tokenizer(problem.text).input_ids) == problem.text


@pytest.mark.parametrize("task", [RARE, MANY, MIXED, LOOPS], ids=lambda task: task.kind)
def test_no_two_problems_have_the_same_prompt(task: Task) -> None:
    texts = [problem.text for problem in build_task(task).problems]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", mechanism_names())
def test_prompts_fit_the_recipe(name: str) -> None:
    definition = load_definition(find_mechanism(name))
    longest = max(len(problem.text) for problem in build_task(definition.mechanism.task).problems)
    assert longest <= definition.baseline.prompt.max_prompt_tokens


def test_measured_problems_are_spread_over_all() -> None:
    problems = build_task(MIXED).problems
    assert measured_problems(problems, 5) == tuple(problems[index] for index in (0, 100, 200, 300, 400))
    assert measured_problems(problems[:3], 5) == problems[:3]

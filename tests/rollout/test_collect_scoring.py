"""Verdicts that take their time, or never come: the same groups are drawn and kept, and generation goes on."""

from dataclasses import replace

import pytest
from scripted import ScriptedGenerator, collector
from tiny import tiny_recipe

from dapo_cli.policy.batch import build_batch
from dapo_cli.reward.pool import close_pools

SCORER = """
import time

def score(response, ground_truth, problem):
    number = int(problem["problem_id"][1:])
    if response == "Answer: 9":
        time.sleep(60)
    time.sleep(0.02 * (number % 3))
    return response == f"Answer: {ground_truth}"
"""


@pytest.fixture
def scorer(tmp_path, monkeypatch):
    (tmp_path / "slow_scorer.py").write_text(SCORER)
    monkeypatch.chdir(tmp_path)
    yield "slow_scorer:score"
    close_pools()


def recipe(reward, **dynamic_sampling):
    return tiny_recipe(dynamic_sampling={"max_drawn_problems": 64} | dynamic_sampling, reward=reward)


class Failing(ScriptedGenerator):
    """The last response of the groups in `failing` gets no verdict."""

    def __init__(self, right, failing):
        super().__init__(right)
        self.failing = failing

    def group(self, request):
        group = super().group(request)
        if request.index not in self.failing:
            return group
        last = replace(group.rollouts[-1], response="Answer: 9")
        return replace(group, rollouts=(*group.rollouts[:-1], last))


@pytest.mark.parametrize("refill", [{}, {"refill": "whole_batches", "problems_per_batch": 8}])
def test_slow_verdicts_change_neither_what_is_drawn_nor_what_is_kept(scorer, refill):
    def right(index):
        return (0, 2, 4, 1)[index % 4]

    quick = collector(recipe({}, **refill), fast := ScriptedGenerator(right)).next_step()
    slow = collector(recipe({"scorer": scorer}, **refill), late := ScriptedGenerator(right)).next_step()
    assert [g.index for g in slow.kept] == [g.index for g in quick.kept]
    assert [g.index for g in slow.drawn] == [g.index for g in quick.drawn]
    assert late.submissions == fast.submissions
    outcomes = [[r.scored.outcome for r in group.rollouts] for group in slow.drawn]
    assert outcomes == [[r.scored.outcome for r in group.rollouts] for group in quick.drawn]


def test_a_rollout_without_a_verdict_is_no_part_of_its_group(scorer):
    # Of 4: group 0 has 3 right and one without a verdict, so that nothing can be learned; group 1 has 2 of 3 right.
    settings = recipe({"scorer": scorer, "time_limit_seconds": 0.3}, max_drawn_problems=5)
    step = collector(settings, Failing(lambda index: 3 if index == 0 else 2, failing={0, 1})).next_step()
    assert [group.index for group in step.kept] == [1, 2, 3, 4]
    assert (step.drawn[0].num_correct, step.drawn[0].num_judged) == (3, 3)

    batch = build_batch(step.kept, settings)
    assert batch.in_loss.tolist() == [True, True, True, False] + [True] * 12
    # Rewards 1, 1, -1: mean 1/3, Bessel std 2/sqrt(3).
    expected = [2 / 3 / (2 / 3**0.5), 2 / 3 / (2 / 3**0.5), -4 / 3 / (2 / 3**0.5), 0.0]
    assert batch.advantages[:4].tolist() == pytest.approx(expected, abs=1e-5)
    # Rewards 1, 1, -1, -1: mean 0, Bessel std 2/sqrt(3).
    assert batch.advantages[4:8].tolist() == pytest.approx([3**0.5 / 2] * 2 + [-(3**0.5) / 2] * 2, abs=1e-5)


def test_by_the_recipe_it_is_trained_on_as_wrong(scorer):
    reward = {"scorer": scorer, "time_limit_seconds": 0.3, "on_verifier_error": "wrong"}
    settings = recipe(reward, max_drawn_problems=4)
    step = collector(settings, Failing(lambda index: 3, failing={0})).next_step()
    assert [group.index for group in step.kept] == [0, 1, 2, 3]
    assert build_batch(step.kept, settings).in_loss.all()
    assert step.kept[0].rollouts[3].scored.error == "the time limit of 0.3 s was reached"
    assert step.kept[0].rollouts[3].reward == -1.0


def test_without_dynamic_sampling_a_group_without_any_verdict_is_left_out(scorer):
    settings = recipe({"scorer": scorer, "time_limit_seconds": 0.3}, enabled=False)
    generator = Failing(lambda index: 2, failing=set())
    group = generator.group

    def none_judged(request):
        made = group(request)
        rollouts = tuple(replace(rollout, response="Answer: 9") for rollout in made.rollouts)
        return replace(made, rollouts=rollouts) if request.index == 2 else made

    generator.group = none_judged
    step = collector(settings, generator).next_step()
    assert [group.index for group in step.kept] == [0, 1, 3]
    assert step.exhausted

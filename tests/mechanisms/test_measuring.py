"""What is measured of a policy, against values that can be worked out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dapo_cli.backend.local import LocalBackend
from dapo_cli.mechanisms.definition import find_mechanism, load_definition
from dapo_cli.mechanisms.measuring import Measurement, sampled_values
from dapo_cli.mechanisms.tasks import build_task
from dapo_cli.policy.model import quiet_transformers
from dapo_cli.rollout.prompts import PromptRenderer
from dapo_cli.toy.model import new_toy_model
from dapo_cli.types import Problem, Rollout, RolloutGroup, Verdict


def rollout(response: str, right: bool, probability: float) -> Rollout:
    """A scored rollout of one token a character, each of which had this probability."""
    logprobs = np.full(len(response), np.log(probability), np.float32)
    verdict = Verdict(1.0 if right else -1.0, "right" if right else "wrong", response)
    return Rollout(np.zeros(len(response), np.int32), logprobs, response, "stop", 0, verdict)


def group(*rollouts: Rollout) -> RolloutGroup:
    """A group of some problem."""
    return RolloutGroup(0, Problem("id", "text", (), "1", "test"), np.zeros(1, np.int32), rollouts)


GROUPS = [
    group(rollout("11", True, 0.5), rollout("11", True, 0.5), rollout("21", True, 0.5), rollout("2222", False, 0.5)),
    group(rollout("1", True, 0.5), rollout("333", False, 0.5), rollout("44", False, 0.5), rollout("44", False, 0.5)),
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 4 / 8),
        ("over_limit", 1 / 8),  # only 2222 is longer than 3
        ("length", 18 / 8),
        ("entropy", np.log(2)),
        ("distinct_right", (2 + 1) / 2),  # 11 and 21; 1
    ],
)
def test_values_of_sampled_responses(name: str, value: float) -> None:
    assert sampled_values(GROUPS, limit=3)[name] == pytest.approx(value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained toy model."""
    folder = tmp_path_factory.mktemp("model")
    quiet_transformers()
    for part in new_toy_model(seed=0):
        part.save_pretrained(folder)
    return folder


def test_the_share_is_the_mean_probability_of_the_marked_beginning(model: Path) -> None:
    definition = load_definition(find_mechanism("dynamic_sampling"))
    policy, tokenizer = new_toy_model(seed=0)
    task = build_task(definition.mechanism.task)
    renderer = PromptRenderer(tokenizer, definition.baseline.prompt)
    rendered = [renderer.render(problem) for problem in task.problems]
    backend = LocalBackend(definition.baseline, str(model), tokenizer)
    point = Measurement(definition.mechanism, definition.baseline, backend, tokenizer, rendered, 1).point(0, 0, 0, {})

    prompts = tokenizer([problem.text for problem, _ in task.probes], return_tensors="pt").input_ids
    answers = tokenizer([text for _, text in task.probes], return_tensors="pt").input_ids
    with torch.no_grad():
        probabilities = torch.softmax(policy(prompts).logits[:, -1], -1).gather(1, answers)
    assert point["share"] == pytest.approx(float(probabilities.mean()), rel=1e-4)


def test_both_arms_of_a_pair_are_measured_with_the_same_random_numbers(model: Path) -> None:
    definition = load_definition(find_mechanism("overlong_filtering"))
    measure = definition.mechanism.measure
    assert measure is not None
    mechanism = definition.mechanism.model_copy(
        update={"measure": measure.model_copy(update={"problems": 4, "samples": 2})}
    )
    _, tokenizer = new_toy_model(seed=0)
    renderer = PromptRenderer(tokenizer, definition.baseline.prompt)
    rendered = [renderer.render(problem) for problem in build_task(mechanism.task).problems]

    def measured(recipe_seed: int, pair: int) -> dict[str, float]:
        recipe = definition.baseline.model_copy(
            update={"rollout": definition.baseline.rollout.model_copy(update={"seed": recipe_seed})}
        )
        backend = LocalBackend(recipe, str(model), tokenizer)
        return dict(Measurement(mechanism, recipe, backend, tokenizer, rendered, pair).point(0, 0, 0, {}))

    assert measured(1, 1) == measured(1_000_001, 1)
    assert measured(1, 1) != measured(1, 2)


def test_the_warm_start_gives_the_policy_that_the_task_describes(tmp_path: Path) -> None:
    from dapo_cli.mechanisms.runs import run_arm
    from dapo_cli.mechanisms.warm_start import warm_model

    definition = load_definition(find_mechanism("dynamic_sampling"))
    folder = warm_model(definition.mechanism.task, tmp_path)
    recipe = definition.treatment
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 3, "learning_rate": 1e-4})})
    curve = run_arm(definition.mechanism, recipe, folder, 1)
    shares = [point["share"] for point in curve.points]
    assert shares[0] == pytest.approx(0.28, abs=0.04)
    assert shares[3] > shares[0] + 0.1
    assert [point["updates"] for point in curve.points] == [0, 8, 16, 24]
    assert curve.points[1]["tokens"] > 2 * 32 * 8  # more than 32 groups of 8 responses of 2 tokens were generated

"""What is measured of a policy between two steps: an exact probability, and sampled responses where needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dapo_cli.backend.local import LocalBackend
from dapo_cli.mechanisms.curves import Point
from dapo_cli.mechanisms.schema import Measure, Mechanism
from dapo_cli.mechanisms.tasks import build_task, measured_problems
from dapo_cli.policy.batch import Batch
from dapo_cli.recipe.schema import Recipe
from dapo_cli.reward.scoring import score_in_order
from dapo_cli.rollout.prompts import RenderedPrompt, training_sampling
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.types import RolloutGroup, RolloutRequest

LIMIT_FACTOR = 2
"""Responses are measured with so many times the limit of training, so that those over it have their answer."""


class Measurement:
    """Measures one run; nothing of it is trained on or counted as generated."""

    def __init__(
        self,
        mechanism: Mechanism,
        recipe: Recipe,
        backend: LocalBackend,
        tokenizer: Any,
        rendered: Sequence[RenderedPrompt],
        pair: int,
    ) -> None:
        task = build_task(mechanism.task)
        prompts = {prompt.problem.text: prompt for prompt in rendered}
        self.decode = tokenizer.decode
        self._recipe = recipe
        self._backend = backend
        self._measure = mechanism.measure
        self._probes = _probe_batch([(prompts[problem.text], text) for problem, text in task.probes], tokenizer)
        asked = [] if self._measure is None else measured_problems(task.problems, self._measure.problems)
        sampling = training_sampling(recipe.rollout, (tokenizer.eos_token_id,))
        self._limit = sampling.max_response_tokens
        sampling = replace(sampling, max_response_tokens=LIMIT_FACTOR * self._limit)
        self._requests = [
            RolloutRequest(
                index, problem, prompts[problem.text].prompt_ids, sampling, _seeds(self._measure, pair, index)
            )
            for index, problem in enumerate(asked)
        ]

    def point(self, step: int, updates: int, tokens: int, metrics: Mapping[str, float]) -> Point:
        """The point of the curve after a step; `tokens` were generated for training until then."""
        values: dict[str, float] = {"step": step, "updates": updates, "tokens": tokens, **metrics}
        if self._probes is not None:
            values["share"] = self._share(self._probes)
        if self._measure is not None and step % self._measure.every == 0:
            groups = self._backend.generate(self._requests)
            values |= sampled_values(
                list(score_in_order(groups, self._recipe.reward, LIMIT_FACTOR * self._limit)), self._limit
            )
        return values

    def _share(self, probes: Batch) -> float:
        logprobs = self._backend.logprobs(probes).astype(np.float64)
        starts = np.cumsum(probes.response_lengths) - probes.response_lengths
        return float(np.exp(np.add.reduceat(logprobs, starts)).mean())


def sampled_values(groups: Sequence[RolloutGroup], limit: int) -> dict[str, float]:
    """accuracy, over_limit, length, entropy and distinct_right of scored groups; `limit` is that of training.

    The entropy is estimated from the log-probs of the sampled tokens, whose negative mean it is on average.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = np.array([len(rollout.response_ids) for rollout in rollouts])
    surprise = -sum(float(rollout.rollout_logprobs.sum(dtype=np.float64)) for rollout in rollouts)
    right = [len({rollout.response for rollout in group.rollouts if rollout.correct}) for group in groups]
    return {
        "accuracy": sum(rollout.correct for rollout in rollouts) / len(rollouts),
        "over_limit": float((lengths > limit).mean()),
        "length": float(lengths.mean()),
        "entropy": surprise / int(lengths.sum()),
        "distinct_right": float(np.mean(right)),
    }


def _seeds(measure: Measure | None, pair: int, index: int) -> tuple[int, ...]:
    samples = 0 if measure is None else measure.samples
    return tuple(rollout_seed("measure", pair, index, sample) for sample in range(samples))


def _probe_batch(probes: Sequence[tuple[RenderedPrompt, str]], tokenizer: Any) -> Batch | None:
    """Prompts with the beginnings of responses as one pack of the policy; None without any."""
    if not probes:
        return None
    texts = [tokenizer(text).input_ids for _, text in probes]
    lengths = np.array([len(ids) for ids in texts], dtype=np.int32)
    count = len(probes)
    return Batch(
        token_ids=np.concatenate(
            [np.array([*prompt.prompt_ids, *ids], np.int32) for (prompt, _), ids in zip(probes, texts, strict=True)]
        ),
        prompt_lengths=np.array([len(prompt.prompt_ids) for prompt, _ in probes], dtype=np.int32),
        response_lengths=lengths,
        groups=np.zeros(count, np.int32),
        advantages=np.zeros(count, np.float32),
        in_loss=np.ones(count, np.bool_),
        rollout_logprobs=np.zeros(int(lengths.sum()), np.float32),
    )

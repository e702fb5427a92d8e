"""A generator whose answers are decided in advance, for tests of the collector and of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dapo_cli.dataset.stream import ProblemStream
from dapo_cli.rollout.collect import Collector
from dapo_cli.rollout.prompts import RenderedPrompt, training_sampling
from dapo_cli.types import Problem, Rollout, RolloutGroup, RolloutRequest


def problems(count: int) -> list[Problem]:
    """`count` problems whose answer is 7."""
    return [Problem(f"p{index}", f"problem {index}", (), "7", "test") for index in range(count)]


class ScriptedGenerator:
    """Answers stream position n with `right(n)` right answers; remembers what was submitted, and when."""

    def __init__(self, right: Callable[[int], int]) -> None:
        self.right = right
        self.submissions: list[list[int]] = []

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        self.submissions.append([request.index for request in requests])
        return iter([self.group(request) for request in requests])

    def group(self, request: RolloutRequest) -> RolloutGroup:
        right = self.right(request.index)
        rollouts = tuple(
            Rollout(
                response_ids=np.array([4, 5], dtype=np.int32),
                rollout_logprobs=np.array([-1.0, -2.0], dtype=np.float32),
                response="Answer: 7" if sample < right else "Answer: 8",
                finish_reason="stop",
                policy_version=0,
            )
            for sample in range(len(request.seeds))
        )
        return RolloutGroup(request.index, request.problem, request.prompt_ids, rollouts)


def collector(recipe, generator, check_stop=lambda: None, num_problems=1000) -> Collector:
    """A collector over scripted problems."""
    rows = problems(num_problems)
    prompts = {row.text: RenderedPrompt(row, row.text, np.array([1, 2], dtype=np.int32)) for row in rows}
    stream = ProblemStream(rows, recipe.dataset.shuffle_seed)
    return Collector(recipe, generator, stream, prompts, training_sampling(recipe.rollout, (3,)), check_stop)

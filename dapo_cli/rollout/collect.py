"""Filling one step with groups worth training on: draw, sample, score, filter, draw again.

Which problems are drawn and which groups are accepted depends on results in the order of submission only, never on
which group happened to finish first: taking the fastest would favour short responses, and no run would repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dapo_cli.algorithm.dynamic_sampling import accepted
from dapo_cli.dataset.stream import ProblemStream
from dapo_cli.recipe.schema import Recipe
from dapo_cli.reward.scoring import PendingGroup, submit_group
from dapo_cli.rollout.prompts import RenderedPrompt
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.types import Problem, RolloutGroup, RolloutRequest, Sampling


class Generator(Protocol):
    """What the collector needs of a backend."""

    def generate(self, requests: list[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit at once, yield in the order of submission."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StepGroups:
    """The groups of one step."""

    kept: tuple[RolloutGroup, ...]
    """What is trained on, in the order drawn."""
    drawn: tuple[RolloutGroup, ...]
    """Everything sampled for the step, kept or not."""
    exhausted: bool
    """The bound on drawn problems was reached before the step was full."""


@dataclass(slots=True)
class _UnderWay:
    """Groups on their way, both in the order of submission."""

    generating: deque[Iterator[RolloutGroup]] = field(default_factory=deque)
    scoring: deque[PendingGroup] = field(default_factory=deque)


class Collector:
    """Owns the position in the stream of problems; `next_step` fills one step.

    `check_stop` is called before each group and may raise to abandon the step; the position is then unchanged.
    """

    def __init__(
        self,
        recipe: Recipe,
        generator: Generator,
        stream: ProblemStream,
        prompts: Mapping[str, RenderedPrompt],
        sampling: Sampling,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.recipe = recipe
        self.stream = stream
        self._generator = generator
        self._prompts = prompts
        self._sampling = sampling
        self._check_stop = check_stop

    def state_dict(self) -> dict[str, Any]:
        """Stream position. With lag 0 the surplus of a step is discarded, so no group outlives its step."""
        return {"stream": self.stream.state_dict()}

    def request(self, index: int, problem: Problem) -> RolloutRequest:
        """One problem's group, with a seed per rollout hashed from run seed, stream index and sample."""
        seeds = tuple(
            rollout_seed("rollout", self.recipe.rollout.seed, index, sample)
            for sample in range(self.recipe.rollout.group_size)
        )
        return RolloutRequest(index, problem, self._prompts[problem.text].prompt_ids, self._sampling, seeds)

    def next_step(self) -> StepGroups:
        """Draw until `train.prompts_per_step` groups are accepted or `max_drawn_problems` is reached."""
        start = self.stream.state_dict()
        try:
            return self._fill()
        except BaseException:
            self.stream.load_state_dict(start)
            raise

    def sample(self, count: int) -> list[RolloutGroup]:
        """Scored groups of the next `count` problems, whatever they are worth."""
        pending = _UnderWay()
        self._submit(pending, count)
        return [self._next_scored(pending) for _ in range(count)]

    def _fill(self) -> StepGroups:
        settings = self.recipe.dynamic_sampling
        wanted = self.recipe.train.prompts_per_step
        bound = settings.max_drawn_problems if settings.enabled else wanted
        whole_batches = settings.enabled and settings.refill == "whole_batches"
        batch = settings.problems_per_batch if whole_batches and settings.problems_per_batch else wanted
        kept: list[RolloutGroup] = []
        drawn: list[RolloutGroup] = []
        pending = _UnderWay()
        submitted = self._submit(pending, min(batch, bound))
        while len(drawn) < submitted:
            group = self._next_scored(pending)
            drawn.append(group)
            if self._is_accepted(group):
                kept.append(group)
            elif not whole_batches and submitted < bound:
                submitted += self._submit(pending, 1)
            if whole_batches and len(drawn) == submitted and len(kept) < wanted:
                submitted += self._submit(pending, min(batch, bound - submitted))
        # Only whole batches can overshoot; that surplus is discarded, as in the paper's recipes.
        return StepGroups(tuple(kept[:wanted]), tuple(drawn), exhausted=len(kept) < wanted)

    def _submit(self, pending: _UnderWay, count: int) -> int:
        requests = [self.request(index, problem) for index, problem in self.stream.take(count)]
        pending.generating.append(self._generator.generate(requests))
        return count

    def _next_scored(self, pending: _UnderWay) -> RolloutGroup:
        """The next group in the order of submission; while its verdicts are on their way, others are generated."""
        while True:
            if pending.scoring and pending.scoring[0].done():
                return pending.scoring.popleft().result()
            self._check_stop()
            group = self._next_generated(pending)
            if group is None:
                return pending.scoring.popleft().result()
            limit = self.recipe.rollout.max_response_tokens
            pending.scoring.append(submit_group(group, self.recipe.reward, limit))

    def _next_generated(self, pending: _UnderWay) -> RolloutGroup | None:
        """The next group from the engine; None when all that were submitted are there."""
        while pending.generating:
            group = next(pending.generating[0], None)
            if group is not None:
                return group
            pending.generating.popleft()
        return None

    def _is_accepted(self, group: RolloutGroup) -> bool:
        settings = self.recipe.dynamic_sampling
        if not settings.enabled:
            return group.num_judged > 0
        # Rollouts without a verdict are no part of the group: what counts is whether the others differ.
        return accepted(group.num_correct, group.num_judged, settings.min_correct, settings.max_correct)

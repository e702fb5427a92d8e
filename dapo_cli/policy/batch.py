"""One step's rollouts as flat arrays: what is trained on, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.recipe.schema import Recipe
from dapo_cli.types import RolloutGroup


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B rollouts in the order of their groups. Token arrays hold one rollout after the other.

    Two rollouts of one prompt of 2 tokens, with responses of 1 and 2 tokens:
    `token_ids = [p p r | p p r r]`, `prompt_lengths = [2 2]`, `response_lengths = [1 2]`,
    `rollout_logprobs = [l | l l]`.
    """

    token_ids: npt.NDArray[np.int32]  # [prompt and response tokens]
    prompt_lengths: npt.NDArray[np.int32]  # [B]
    response_lengths: npt.NDArray[np.int32]  # [B]
    groups: npt.NDArray[np.int32]  # [B], which prompt of the batch: 0 0 ... 1 1 ...
    advantages: npt.NDArray[np.float32]  # [B]
    in_loss: npt.NDArray[np.bool_]  # [B], False: the rollout carries no loss (overlong filtering)
    rollout_logprobs: npt.NDArray[np.float32]  # [response tokens]
    old_logprobs: npt.NDArray[np.float32] | None = None  # [response tokens]

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Prompt plus response tokens of each rollout, [B]."""
        return self.prompt_lengths + self.response_lengths

    def with_old_logprobs(self, old_logprobs: npt.NDArray[np.float32]) -> Batch:
        """The same batch with the policy's log-probs from before the first update, [response tokens]."""
        if old_logprobs.shape != self.rollout_logprobs.shape:
            raise ValueError(f"old_logprobs has shape {old_logprobs.shape}, expected {self.rollout_logprobs.shape}")
        return replace(self, old_logprobs=old_logprobs)

    def rows(self, first: int, last: int) -> Batch:
        """Rollouts `first` up to, not including, `last`, as views."""
        tokens = _span(self.lengths, first, last)
        responses = _span(self.response_lengths, first, last)
        return Batch(
            self.token_ids[tokens],
            self.prompt_lengths[first:last],
            self.response_lengths[first:last],
            self.groups[first:last],
            self.advantages[first:last],
            self.in_loss[first:last],
            self.rollout_logprobs[responses],
            None if self.old_logprobs is None else self.old_logprobs[responses],
        )

    def take(self, rows: npt.NDArray[np.int64]) -> Batch:
        """The rollouts at `rows`, in that order, as copies."""
        tokens = token_positions(self.lengths, rows)
        responses = token_positions(self.response_lengths, rows)
        return Batch(
            self.token_ids[tokens],
            self.prompt_lengths[rows],
            self.response_lengths[rows],
            self.groups[rows],
            self.advantages[rows],
            self.in_loss[rows],
            self.rollout_logprobs[responses],
            None if self.old_logprobs is None else self.old_logprobs[responses],
        )

    def minibatches(self, prompts_per_minibatch: int) -> Iterator[Batch]:
        """Whole groups in order, `prompts_per_minibatch` at a time; the last may be smaller."""
        starts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        bounds = [*starts[::prompts_per_minibatch].tolist(), len(self)]
        for first, last in pairwise(bounds):
            yield self.rows(first, last)


def _span(lengths: npt.NDArray[np.int32], first: int, last: int) -> slice:
    start = int(lengths[:first].sum(dtype=np.int64))
    return slice(start, start + int(lengths[first:last].sum(dtype=np.int64)))


def token_positions(lengths: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the tokens of `rows` lie in an array of all rows, one after the other, with `lengths` tokens each.

    >>> token_positions(np.array([2, 3, 1], dtype=np.int32), np.array([2, 0])).tolist()
    [5, 0, 1]
    """
    starts = (np.cumsum(lengths, dtype=np.int64) - lengths)[rows]
    taken = lengths[rows].astype(np.int64)
    ends = np.cumsum(taken)
    positions: npt.NDArray[np.int64] = np.arange(int(taken.sum())) + np.repeat(starts - (ends - taken), taken)
    return positions


def build_batch(groups: Sequence[RolloutGroup], recipe: Recipe) -> Batch:
    """Rewards become advantages within each group, and rollouts become flat arrays; `groups` must not be empty.

    With `reward.overlong_filter` a truncated rollout still counts in its group's mean and standard deviation, but
    carries no loss. A rollout without a verdict counts in neither and carries no loss.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    judged = np.array([rollout.judged for rollout in rollouts])
    rewards = np.array([[rollout.reward for rollout in group.rollouts] for group in groups])  # [P, G]
    advantages = _advantages_of_judged(rewards, judged.reshape(rewards.shape), recipe.advantage.normalize)
    pieces = [ids for group in groups for r in group.rollouts for ids in (group.prompt_ids, r.response_ids)]
    truncated = np.array([rollout.finish_reason == "length" for rollout in rollouts])
    sizes = [len(group.rollouts) for group in groups]
    return Batch(
        token_ids=np.concatenate(pieces),
        prompt_lengths=np.repeat([len(group.prompt_ids) for group in groups], sizes).astype(np.int32),
        response_lengths=np.array([len(rollout.response_ids) for rollout in rollouts], dtype=np.int32),
        groups=np.repeat(np.arange(len(groups)), sizes).astype(np.int32),
        advantages=advantages.reshape(-1),
        in_loss=judged & ~truncated if recipe.reward.overlong_filter else judged,
        rollout_logprobs=np.concatenate([rollout.rollout_logprobs for rollout in rollouts]),
    )


def _advantages_of_judged(
    rewards: npt.NDArray[np.float64],  # [P, G]
    judged: npt.NDArray[np.bool_],  # [P, G]
    normalize: Literal["group_std", "none"],
) -> npt.NDArray[np.float32]:  # [P, G]
    """Advantages within the judged rollouts of each group; 0 for the others, and where fewer than two are left."""
    if judged.all():
        return group_advantages(rewards, normalize)
    advantages = np.zeros(rewards.shape, np.float32)
    for row, mask in enumerate(judged):
        if mask.sum() > 1:
            advantages[row, mask] = group_advantages(rewards[row, mask][None], normalize)[0]
    return advantages


def dummy_pack() -> Batch:
    """One rollout of two tokens outside the loss: what a rank computes while others still have micro-batches."""
    return Batch(
        token_ids=np.zeros(2, np.int32),
        prompt_lengths=np.ones(1, np.int32),
        response_lengths=np.ones(1, np.int32),
        groups=np.zeros(1, np.int32),
        advantages=np.zeros(1, np.float32),
        in_loss=np.zeros(1, np.bool_),
        rollout_logprobs=np.zeros(1, np.float32),
        old_logprobs=np.zeros(1, np.float32),
    )


def microbatch_bounds(lengths: npt.NDArray[np.int32], tokens_per_microbatch: int) -> list[tuple[int, int]]:
    """Cut rollouts, in order, into packs of at most `tokens_per_microbatch` tokens: (first, last) of each.

    The cut changes memory and speed, never the gradient.

    Raises:
        ValueError: a single rollout is longer than the budget.

    >>> microbatch_bounds(np.array([3, 4, 2, 5], dtype=np.int32), 7)
    [(0, 2), (2, 4)]
    """
    if len(lengths) and int(lengths.max()) > tokens_per_microbatch:
        raise ValueError(
            f"a rollout of {int(lengths.max())} tokens exceeds tokens_per_microbatch {tokens_per_microbatch}"
        )
    bounds, first, used = [], 0, 0
    for row, length in enumerate(lengths.tolist()):
        if used + length > tokens_per_microbatch:
            bounds.append((first, row))
            first, used = row, 0
        used += length
    if first < len(lengths):
        bounds.append((first, len(lengths)))
    return bounds

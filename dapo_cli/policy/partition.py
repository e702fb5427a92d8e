"""Who computes what of a minibatch: rows dealt to ranks by tokens, with the denominator counted before the deal."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapo_cli.algorithm.denominator import emulated_partition, loss_weights
from dapo_cli.policy.batch import Batch, microbatch_bounds, token_positions
from dapo_cli.recipe.schema import Train


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One rank's part of a minibatch."""

    rows: Batch
    weights: npt.NDArray[np.float64]  # [rows], in the loss of the whole minibatch
    num_loss_tokens: int
    """Of the whole minibatch."""
    num_microbatches: int
    """Of the rank that has most: every rank runs as many, the missing ones on a dummy, so that collectives match."""
    ranks: int


def deal(lengths: npt.NDArray[np.int32], ranks: int) -> list[npt.NDArray[np.int64]]:
    """Row indices of each rank, ascending; token sums are as equal as giving the longest first to the least makes them.

    >>> [rows.tolist() for rows in deal(np.array([5, 1, 4, 2], dtype=np.int32), 2)]
    [[0, 1], [2, 3]]
    """
    if ranks == 1:
        return [np.arange(len(lengths))]
    owner = np.empty(len(lengths), dtype=np.int64)
    least = [(0, rank) for rank in range(ranks)]
    for row in np.argsort(-lengths, kind="stable").tolist():
        tokens, rank = heapq.heappop(least)
        owner[row] = rank
        heapq.heappush(least, (tokens + int(lengths[row]), rank))
    return [np.flatnonzero(owner == rank) for rank in range(ranks)]


def shares(minibatch: Batch, ranks: int, train: Train) -> list[Share]:
    """The minibatch dealt to `ranks` ranks; the same rows and lengths are always dealt alike."""
    weights = rollout_weights(minibatch, train)
    num_loss_tokens = max(int(minibatch.response_lengths[minibatch.in_loss].sum()), 1)
    dealt = deal(minibatch.lengths, ranks)
    parts = [minibatch.take(rows) if ranks > 1 else minibatch for rows in dealt]
    most = max(len(microbatch_bounds(part.lengths, train.tokens_per_microbatch)) for part in parts)
    return [Share(part, weights[rows], num_loss_tokens, most, ranks) for part, rows in zip(parts, dealt, strict=True)]


def assemble(minibatch: Batch, parts: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Values per response token of the ranks' shares, in the order of the minibatch; [response tokens]."""
    values = np.empty(int(minibatch.response_lengths.sum(dtype=np.int64)), np.float32)
    for rows, part in zip(deal(minibatch.lengths, len(parts)), parts, strict=True):
        values[token_positions(minibatch.response_lengths, rows)] = part
    return values


def rollout_weights(minibatch: Batch, train: Train) -> npt.NDArray[np.float64]:
    """Each rollout's weight in the loss, [B]: the denominator, counted once for the whole update."""
    partition = None
    if train.emulated_partition is not None:
        emulated = train.emulated_partition
        partition = emulated_partition(minibatch.lengths, emulated.ranks, emulated.tokens_per_microbatch)
    return loss_weights(
        train.loss_denominator, minibatch.response_lengths, minibatch.in_loss, minibatch.groups, partition
    )

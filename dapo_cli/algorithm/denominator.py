"""The one place that decides how token losses become one number.

Everything else sums: loss = sum over rollouts i of w_i * sum over its tokens t of l_it, with the weights counted once
for the whole minibatch. Any split of the rollouts over micro-batches or ranks therefore gives the same gradient.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["minibatch", "group", "sequence", "microbatch"]


def loss_weights(
    kind: Kind,
    response_lengths: npt.NDArray[np.integer[Any]],  # [B] tokens
    in_loss: npt.NDArray[np.bool_],  # [B]
    groups: npt.NDArray[np.integer[Any]],  # [B], equal numbers are rollouts of one problem
    partition: npt.NDArray[np.integer[Any]] | None,  # [B], equal numbers share a micro-batch; for microbatch only
) -> npt.NDArray[np.float64]:  # [B]
    """Weight of every token of each rollout, for one minibatch.

    - `minibatch`: 1 / tokens of the minibatch (verl's token mean since 2025-11, exact over micro-batches and ranks).
    - `group`: 1 / (groups * tokens of the rollout's group), equation 8 read literally.
    - `sequence`: 1 / (rollouts * tokens of the rollout), GRPO.
    - `microbatch`: (rollouts of the micro-batch / rollouts) / tokens of the micro-batch, what verl did in 2025-05.

    Rollouts outside the loss, or without a token, weigh 0 and enter no count: of tokens, of rollouts, of groups.
    verl does the same in its sequence means since 2025-11; in 2025-05 a masked rollout still counted as a rollout of
    its micro-batch, but the public run masked none. With nothing in the loss all weights are 0.

    Raises:
        ValueError: `microbatch` without a partition.
    """
    counted = in_loss & (response_lengths > 0)
    tokens = np.where(counted, response_lengths, 0).astype(np.float64)
    weights: npt.NDArray[np.float64]
    if kind == "minibatch":
        weights = counted / max(tokens.sum(), 1.0)
    elif kind == "group":
        group_tokens, _, num_groups = _totals(groups, tokens, counted)
        weights = counted / np.maximum(num_groups * group_tokens, 1.0)
    elif kind == "sequence":
        weights = counted / np.maximum(counted.sum() * tokens, 1.0)
    else:
        if partition is None:
            raise ValueError("loss denominator: microbatch needs a partition into micro-batches, got None")
        microbatch_tokens, microbatch_rollouts, _ = _totals(partition, tokens, counted)
        weights = counted * microbatch_rollouts / np.maximum(counted.sum() * microbatch_tokens, 1.0)
    return weights


def _totals(
    labels: npt.NDArray[np.integer[Any]],  # [B]
    tokens: npt.NDArray[np.float64],  # [B]
    counted: npt.NDArray[np.bool_],  # [B]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Tokens and counted rollouts of each rollout's own label, both [B], and the number of labels with any."""
    _, label = np.unique(labels, return_inverse=True)
    rollouts = np.bincount(label, weights=counted).astype(np.float64)
    label_tokens = np.bincount(label, weights=tokens).astype(np.float64)
    return label_tokens[label], rollouts[label], int(np.count_nonzero(rollouts))


def emulated_partition(
    lengths: npt.NDArray[np.integer[Any]],  # [B] prompt and response tokens
    ranks: int,
    tokens_per_microbatch: int,
) -> npt.NDArray[np.int64]:  # [B], 0, 0, ..., 1, 1, ...
    """The micro-batch of each rollout of a minibatch, had it been trained on `ranks` data-parallel ranks.

    Emulated of the public 2025-05 run: every rank gets an equal share of the minibatch in order (where the rollouts do
    not divide evenly, the first ranks get one more; the public code refused that), and a share over the token budget is
    cut into several micro-batches. Below the budget, as through most of that run, this is one micro-batch per rank.

    Not emulated: that run first dealt the whole step's rollouts to the ranks so that their token sums were equal, which
    tears groups and minibatches apart, and balanced the micro-batches of a rank in the same manner. Here a rank's
    rollouts stay in order, and a new micro-batch starts when the next rollout would exceed the budget; a rollout over
    the budget is a micro-batch of its own.

    >>> emulated_partition(np.array([5, 5, 5, 9]), ranks=2, tokens_per_microbatch=10).tolist()
    [0, 0, 1, 2]
    """
    partition = np.empty(len(lengths), dtype=np.int64)
    microbatch = -1
    for share in np.array_split(np.arange(len(lengths)), ranks):
        tokens_left = -1
        for row in share:
            tokens_left -= int(lengths[row])
            if tokens_left < 0:
                microbatch += 1
                tokens_left = tokens_per_microbatch - int(lengths[row])
            partition[row] = microbatch
    return partition

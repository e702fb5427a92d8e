"""Log-probs of response tokens: the forward pass over one pack, without padding and without full logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from dapo_cli.algorithm.logprobs import chosen_logprobs
from dapo_cli.policy.attention import segments_of
from dapo_cli.policy.batch import Batch, microbatch_bounds
from dapo_cli.recipe.schema import Recipe


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Compute in `dtype` over float32 weights; nothing to do for float32."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, dtype))


def packs(batch: Batch, tokens_per_microbatch: int) -> Iterator[Batch]:
    """The micro-batches of one minibatch, in order."""
    for first, last in microbatch_bounds(batch.lengths, tokens_per_microbatch):
        yield batch.rows(first, last)


def response_logprobs(model: torch.nn.Module, pack: Batch, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Log-probs (with gradient) and entropy (without) of a pack's response tokens, each [response tokens] float32.

    The whole pack is one row of tokens; the head runs on the positions that predict a response token, in chunks of
    `train.logits_chunk_tokens`. Logits are divided by the rollout temperature.
    """
    device = next(model.parameters()).device
    lengths = pack.lengths
    ends = np.cumsum(lengths, dtype=np.int64)
    positions = np.arange(len(pack.token_ids)) - np.repeat(ends - lengths, lengths)
    # A response token at position t is predicted by the hidden state at t - 1.
    targets_at = np.flatnonzero(positions >= np.repeat(pack.prompt_lengths, lengths))
    token_ids = torch.from_numpy(pack.token_ids.astype(np.int64)).to(device)
    with autocast(device, recipe.model.dtype):
        hidden = model.get_decoder()(  # type: ignore[operator]
            input_ids=token_ids[None],
            position_ids=torch.from_numpy(positions).to(device)[None],
            use_cache=False,
            segments=segments_of(lengths, device),
        ).last_hidden_state[0]
        at = torch.from_numpy(targets_at).to(device)
        return chosen_logprobs(
            hidden[at - 1],
            model.get_output_embeddings(),  # type: ignore[operator]
            token_ids[at],
            recipe.rollout.temperature,
            recipe.train.logits_chunk_tokens,
        )

"""Log-probs of response tokens: the forward pass over one pack, without padding and without full logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from dapo_cli.algorithm.logprobs import chosen_logprobs
from dapo_cli.policy.attention import Segments, segments_of
from dapo_cli.policy.batch import Batch, dummy_pack, microbatch_bounds
from dapo_cli.policy.partition import Share
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


@dataclass(frozen=True, slots=True, eq=False)
class PackInputs:
    """What the model needs of a pack, on its device."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    targets_at: Tensor  # [N] int64, positions of the response tokens
    segments: Segments


def pack_inputs(pack: Batch, device: torch.device) -> PackInputs:
    """The whole pack as one row of tokens."""
    lengths = pack.lengths
    ends = np.cumsum(lengths, dtype=np.int64)
    positions = np.arange(len(pack.token_ids)) - np.repeat(ends - lengths, lengths)
    targets_at = np.flatnonzero(positions >= np.repeat(pack.prompt_lengths, lengths))
    return PackInputs(
        torch.from_numpy(pack.token_ids.astype(np.int64)).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(targets_at).to(device),
        segments_of(lengths, device),
    )


def packed_logprobs(policy: Any, inputs: PackInputs, temperature: float, chunk_tokens: int) -> tuple[Tensor, Tensor]:
    """Log-probs (with gradient) and entropy (without) of a pack's response tokens, each [N] float32.

    The head runs on the positions that predict a response token only, `chunk_tokens` at a time.
    """
    hidden = policy.get_decoder()(
        input_ids=inputs.token_ids[None],
        position_ids=inputs.positions[None],
        use_cache=False,
        segments=inputs.segments,
    ).last_hidden_state[0]
    # A response token at position t is predicted by the hidden state at t - 1.
    return chosen_logprobs(
        hidden[inputs.targets_at - 1],
        policy.get_output_embeddings(),
        inputs.token_ids[inputs.targets_at],
        temperature,
        chunk_tokens,
    )


def make_forward_method(policy: Any) -> None:
    """Let FSDP2 gather the root's weights around `packed_logprobs`, which is not the model's own forward."""
    policy.packed_logprobs = MethodType(packed_logprobs, policy)
    register_fsdp_forward_method(policy, "packed_logprobs")


def compute_device(model: torch.nn.Module) -> torch.device:
    """Where the forward runs; weights offloaded to host memory still compute on their rank's GPU."""
    device = getattr(model, "compute_device", None)
    return device if isinstance(device, torch.device) else next(model.parameters()).device


def response_logprobs(model: torch.nn.Module, pack: Batch, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Log-probs (with gradient) and entropy (without) of a pack's response tokens, each [response tokens] float32.

    Logits are divided by the rollout temperature. A sharded model casts its weights itself; any other runs under
    autocast.
    """
    device = compute_device(model)
    sharded = isinstance(model, FSDPModule)
    forward = model.packed_logprobs if sharded else partial(packed_logprobs, model)
    with autocast(device, "float32" if sharded else recipe.model.dtype):
        logprobs, entropy = forward(  # type: ignore[operator]
            pack_inputs(pack, device), recipe.rollout.temperature, recipe.train.logits_chunk_tokens
        )
    return logprobs, entropy


@torch.no_grad()
def share_logprobs(model: torch.nn.Module, share: Share, recipe: Recipe) -> npt.NDArray[np.float32]:
    """Log-probs of a share's response tokens, [response tokens], packed exactly as an update packs them."""
    parts = [np.zeros(0, np.float32)]
    for pack in packs(share.rows, recipe.train.tokens_per_microbatch):
        parts.append(response_logprobs(model, pack, recipe)[0].cpu().numpy())
    for _ in range(share.num_microbatches - (len(parts) - 1)):
        response_logprobs(model, dummy_pack(), recipe)
    return np.concatenate(parts)

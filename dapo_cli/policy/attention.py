"""Attention over packed sequences: one registered function, no mask matrix, no leak between sequences.

transformers' own way of packing builds a mask of the square of the pack, or leaks silently when a mask is passed. Here
the segments travel as a keyword through the model's forward to this function: on CPU they run as a few padded
causal batches of similar lengths (padding stands after the real tokens, so causality alone hides it), on CUDA in
half precision through torch's variable-length kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

NAME = "dapo_packed"

# A bucket holds segments whose longest is at most this much longer than its shortest: bounds the work on padding
# without one kernel launch per segment.
_BUCKET_RATIO = 1.15
_BUCKET_SLACK_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Segments of similar length, laid side by side with padding after the real tokens."""

    gather: Tensor  # [s, longest] int64, pack position of each token; padding repeats the segment's first token
    real: Tensor  # [s, longest] bool


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Where the sequences of one pack lie; made once per pack and used by every layer."""

    buckets: tuple[Bucket, ...]
    restore: Tensor  # [T] int64, where each pack position stands among the real tokens of all buckets
    cumulative_lengths: Tensor  # [S + 1] int32
    longest: int


def segments_of(lengths: npt.NDArray[np.int32], device: torch.device) -> Segments:
    """Plan the attention of a pack whose sequences have `lengths` tokens, [S]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order]
    buckets, positions = [], []
    first = 0
    while first < len(order):
        limit = ascending[first] * _BUCKET_RATIO + _BUCKET_SLACK_TOKENS
        last = int(np.searchsorted(ascending, limit, side="right"))
        members = order[first:last]
        offsets = np.arange(int(ascending[last - 1]))
        real = offsets[None, :] < lengths[members, None]
        gather = starts[members, None] + np.where(real, offsets[None, :], 0)
        buckets.append(Bucket(torch.from_numpy(gather).to(device), torch.from_numpy(real).to(device)))
        positions.append(gather[real])
        first = last
    restore = np.argsort(np.concatenate(positions), kind="stable")
    cumulative = np.concatenate([[0], ends]).astype(np.int32)
    return Segments(
        tuple(buckets),
        torch.from_numpy(restore).to(device),
        torch.from_numpy(cumulative).to(device),
        int(ascending[-1]),
    )


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, T, D], or [B, heads, Q, D] while generating
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of every model we load, [B, T, heads, D].

    With `segments` each sequence of the pack attends causally to itself alone. Without, `attention_mask` is the
    whole truth ([B, 1, Q, K], True where a query may look).

    Raises:
        ValueError: a pack came with a mask, or neither was given.
    """
    # Under autocast rotary embeddings leave float32 queries and keys beside half-precision values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if segments is None:
        if attention_mask is None:
            raise ValueError("packed attention needs segments, or a mask that says what each query may see")
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None
    if attention_mask is not None:
        raise ValueError("packed attention takes no mask: the segments say it all")
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _varlen(query, key, value, scaling, segments), None
    return _bucketed(query, key, value, scaling, segments), None


def _bucketed(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    rows_q, rows_k, rows_v = (t[0].transpose(0, 1) for t in (query, key, value))  # [T, heads, D]
    mixed = []
    for bucket in segments.buckets:
        q, k, v = (rows[bucket.gather].transpose(1, 2) for rows in (rows_q, rows_k, rows_v))  # [s, heads, longest, D]
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        mixed.append(out.transpose(1, 2)[bucket.real])  # [real tokens, heads, D]
    return torch.cat(mixed)[segments.restore].unsqueeze(0)


def _varlen(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))  # [T, heads, D]
    bounds, longest = segments.cumulative_lengths, segments.longest
    out = varlen_attn(
        q,
        k,
        v,
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(out, Tensor)
    return out.unsqueeze(0)


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers; no mask function goes with it, so no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)

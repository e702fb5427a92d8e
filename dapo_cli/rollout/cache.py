"""A key-value cache that grows by doubling: no copy per token, and rows can be dropped as responses end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class GrowingCache:
    """Keys and values of all layers, [B, key-value heads, tokens, D], in the form transformers' models call.

    transformers' own dynamic cache concatenates at every token, which copies the square of the response length.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._used: list[int] = []

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `key` and `value` of one layer and return all of them so far, in the precision of the values."""
        key = key.to(value.dtype)
        if layer_idx == len(self._buffers):
            self._buffers.append((key, value))
            self._used.append(key.shape[2])
            return key, value
        start = self._used[layer_idx]
        end = start + key.shape[2]
        if end > self._buffers[layer_idx][0].shape[2]:
            self._buffers[layer_idx] = (self._grown(layer_idx, 0, end), self._grown(layer_idx, 1, end))
        keys, values = self._buffers[layer_idx]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        self._used[layer_idx] = end
        return keys[:, :, :end], values[:, :, :end]

    def _grown(self, layer: int, which: int, needed: int) -> Tensor:
        old = self._buffers[layer][which]
        batch, heads, size, width = old.shape
        new = old.new_empty(batch, heads, max(needed, 2 * size), width)
        new[:, :, : self._used[layer]] = old[:, :, : self._used[layer]]
        return new

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen so far."""
        return self._used[layer_idx] if self._used else 0

    def repeat(self, times: Tensor) -> None:
        """Repeat row b `times[b]` times in place: one prompt, many responses."""
        self._map(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self._map(lambda tensor: tensor[rows])

    def _map(self, change: Any) -> None:
        self._buffers = [
            (change(keys[:, :, :used]), change(values[:, :, :used]))
            for (keys, values), used in zip(self._buffers, self._used, strict=True)
        ]


def prompt_mask(lengths: Tensor, longest: int) -> Tensor:
    """The mask of left-padded prompts, [B, 1, longest, longest], True where a query may look.

    Padding queries see themselves, so that their (unused) rows stay finite.
    """
    positions = torch.arange(longest, device=lengths.device)
    real = positions[None, :] >= (longest - lengths)[:, None]  # [B, longest]
    causal = positions[None, :] <= positions[:, None]
    diagonal = torch.eye(longest, dtype=torch.bool, device=lengths.device)
    return ((causal[None] & real[:, None, :]) | diagonal[None])[:, None]

"""The clipped policy loss of each token; the reduction to one number is decided in `denominator`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""The log-ratio is clamped to +-20 before it is exponentiated, as the public code does since 2025-06."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """Loss of each response token, and which of them are clipped. A token is in at most one clipped set.

    `(clipped_low | clipped_high).mean()` is verl's `pg_clipfrac`, `clipped_dual.mean()` its `pg_clipfrac_lower`.
    """

    loss: Tensor  # [T], to be minimised, with gradient; exactly zero gradient where clipped
    clipped_low: Tensor  # [T] bool, negative advantage and ratio below 1 - clip_ratio_low
    clipped_high: Tensor  # [T] bool, positive advantage and ratio above 1 + clip_ratio_high
    clipped_dual: Tensor  # [T] bool, negative advantage and ratio above dual_clip_ratio
    ratio: Tensor  # [T], without gradient


def policy_loss(
    logprobs: Tensor,  # [T]
    old_logprobs: Tensor,  # [T]
    advantages: Tensor,  # [T]
    clip_ratio_low: float,
    clip_ratio_high: float,
    dual_clip_ratio: float | None,
) -> TokenLosses:
    """Clip-Higher (paper, equation 8) with dual clip (arXiv 1912.09729).

    With r = exp(logprobs - old_logprobs): loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most
    -A * dual_clip_ratio. `dual_clip_ratio` None leaves that bound out.

    >>> A = torch.tensor([1.0, 1.0, -1.0])
    >>> old, new = torch.zeros(3), torch.tensor([1.5, 0.5, 20.0]).log()
    >>> policy_loss(new, old, A, 0.2, 0.28, 10.0).loss
    tensor([-1.2800, -0.5000, 10.0000])
    """
    ratio = torch.exp(torch.clamp(logprobs - old_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    negative = advantages < 0
    clipped_low = negative & (ratio < 1 - clip_ratio_low)
    clipped_high = (advantages > 0) & (ratio > 1 + clip_ratio_high)
    clipped_dual = torch.zeros_like(negative)
    effective = torch.where(clipped_low, 1 - clip_ratio_low, ratio)
    effective = torch.where(clipped_high, 1 + clip_ratio_high, effective)
    if dual_clip_ratio is not None:
        clipped_dual = negative & (ratio > dual_clip_ratio)
        effective = torch.where(clipped_dual, dual_clip_ratio, effective)
    return TokenLosses(-advantages * effective, clipped_low, clipped_high, clipped_dual, ratio.detach())

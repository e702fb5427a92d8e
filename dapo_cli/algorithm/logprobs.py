"""Log-probs of chosen tokens without ever holding the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def chosen_logprobs(
    hidden: Tensor,  # [N, H]
    head: Callable[[Tensor], Tensor],  # [n, H] -> [n, V]
    targets: Tensor,  # [N], token ids
    temperature: float,
    chunk_tokens: int,
) -> tuple[Tensor, Tensor]:  # [N], [N]
    """Log-prob of each target under softmax(head(hidden) / temperature), and the entropy of that distribution.

    At most `chunk_tokens` rows of logits exist at any time: each chunk's are dropped after use and computed once more
    in the backward pass. Logits are raised to float32 (float64 stays) before the division. The entropy is
    logsumexp - sum(p * logit), in nats, over the whole vocabulary; it carries no gradient.

    Raises:
        ValueError: `chunk_tokens` is below 1.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chosen_logprobs: chunk_tokens must be at least 1, got {chunk_tokens}")

    def of_chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        normalizer = torch.logsumexp(logits, dim=-1)
        logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normalizer
        # Last, because the recomputation of the backward pass stops once it has what the gradient needs.
        with torch.no_grad():
            entropy = normalizer - (torch.softmax(logits, dim=-1) * logits).sum(-1)
        return logprobs, entropy

    chunks = zip(torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    if torch.is_grad_enabled():
        parts = [_recomputed(of_chunk, *chunk) for chunk in chunks]
    else:
        parts = [of_chunk(*chunk) for chunk in chunks]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _recomputed(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], hidden: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """`function(hidden, targets)`, whose intermediate tensors are computed again in the backward pass."""
    result = checkpoint(function, hidden, targets, use_reentrant=False, preserve_rng_state=False)
    return cast(tuple[Tensor, Tensor], result)

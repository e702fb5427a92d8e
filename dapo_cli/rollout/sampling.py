"""Drawing the next token: the filters, the distribution that is sampled from, and per-rollout random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dapo_cli.errors import UsageError
from dapo_cli.types import Sampling

_DRAWN_AHEAD = 64


class UniformStreams:
    """One stream of uniform numbers per rollout; number t of a stream depends on its seed alone."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [np.random.Generator(np.random.Philox(seed)) for seed in seeds]
        self._ahead = np.empty((len(seeds), 0))
        self._first = 0

    def at(self, position: int, device: torch.device) -> Tensor:
        """The numbers of all rollouts for response position `position`, called with 0, 1, 2, ...; [B] float64."""
        if position >= self._first + self._ahead.shape[1]:
            self._first += self._ahead.shape[1]
            self._ahead = np.stack([generator.random(_DRAWN_AHEAD) for generator in self._generators])
        return torch.from_numpy(self._ahead[:, position - self._first].copy()).to(device)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rollouts only."""
        indices = rows.cpu().numpy()
        self._generators = [self._generators[row] for row in indices]
        self._ahead = self._ahead[indices]


def check_sampling(sampling: Sampling) -> None:
    """Refuse what this engine does not do, instead of leaving it out.

    Raises:
        UsageError: a penalty is set.
    """
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    if penalties != (1.0, 0.0, 0.0):
        raise UsageError(f"sampling: the hf engine has no penalties, got repetition, presence, frequency {penalties}")


def next_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the distribution's cumulative sum at `uniform`.

    `logits` is [B, V], `uniform` [B] float64 in [0, 1). Returns the tokens [B] int64 and their log-probs [B] float32
    under the distribution that was sampled from: after temperature and after top_k, top_p and min_p.
    """
    scores = filtered(logits.float() / sampling.temperature, sampling)
    logprobs = torch.log_softmax(scores, dim=-1)  # [B, V]
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)  # [B, 1]
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def filtered(scores: Tensor, sampling: Sampling) -> Tensor:
    """Scores [B, V] with the tokens outside top_k, top_p or min_p at minus infinity.

    top_p keeps the smallest set of most likely tokens whose probability reaches top_p; min_p keeps tokens at least
    min_p times as likely as the likeliest.
    """
    if sampling.top_k > 0:
        smallest = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = torch.softmax(scores, dim=-1).sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        scores = scores.masked_fill(dropped, -torch.inf)
    if sampling.min_p > 0.0:
        probabilities = torch.softmax(scores, dim=-1)
        floor = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(probabilities < floor, -torch.inf)
    return scores

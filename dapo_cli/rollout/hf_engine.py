"""The hf engine: samples from the very weights that are trained, in this process.

A prompt is prefilled once for its whole group; rollouts decode side by side over a growing cache, and rows leave it
as they end. Each rollout draws from its own random stream, so its tokens do not depend on its neighbours beyond
float rounding, and a run repeats exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dapo_cli.policy.forward import autocast
from dapo_cli.rollout.cache import GrowingCache, prompt_mask
from dapo_cli.rollout.response_text import response_text
from dapo_cli.rollout.sampling import UniformStreams, check_sampling, next_tokens
from dapo_cli.rollout.streaming import OnTokens
from dapo_cli.types import FinishReason, Rollout, RolloutGroup, RolloutRequest, Sampling


class HFEngine:
    """Samples groups with a transformers model loaded by `policy.model.load_model`."""

    def __init__(self, policy: Any, tokenizer: Any, dtype: str, max_concurrent_rollouts: int) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.max_concurrent_rollouts = max_concurrent_rollouts
        self.policy_version = 0
        self._queued: deque[RolloutRequest] = deque()
        self._finished: dict[int, RolloutGroup] = {}
        self._submitted = 0
        self._on_tokens: OnTokens | None = None

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Queue `requests` now; sample them, with whatever else is queued, when the first group is asked for."""
        for request in requests:
            check_sampling(request.sampling)
        tickets = range(self._submitted, self._submitted + len(requests))
        self._submitted += len(requests)
        self._queued.extend(requests)
        return self._collect(tickets)

    def stream(self, requests: Sequence[RolloutRequest], on_tokens: OnTokens) -> None:
        """Sample `requests` now, the same tokens as `generate` gives; `on_tokens` hears of each as it is drawn.

        What `on_tokens` raises ends the sampling.

        Raises:
            RuntimeError: groups of an earlier `generate` have not been taken.
        """
        if self._queued or self._finished:
            raise RuntimeError("cannot stream while groups are waiting to be sampled or taken")
        self._on_tokens = on_tokens
        try:
            for _ in self.generate(requests):
                pass
        finally:
            self._on_tokens = None
            # What an interruption left must not be taken up by the next call.
            self._submitted -= len(self._queued)
            self._queued.clear()
            self._finished.clear()

    def _collect(self, tickets: range) -> Iterator[RolloutGroup]:
        for ticket in tickets:
            while ticket not in self._finished:
                self._sample_next_batch()
            yield self._finished.pop(ticket)

    def _sample_next_batch(self) -> None:
        """Sample as many whole queued groups of one kind of sampling as fit side by side."""
        first_ticket = self._submitted - len(self._queued)
        batch = [self._queued.popleft()]
        rollouts = len(batch[0].seeds)
        if rollouts > self.max_concurrent_rollouts:
            self._finished[first_ticket] = self._sample_in_parts(batch[0])
            return
        while self._queued and self._queued[0].sampling == batch[0].sampling:
            rollouts += len(self._queued[0].seeds)
            if rollouts > self.max_concurrent_rollouts:
                break
            batch.append(self._queued.popleft())
        with torch.inference_mode():
            groups = self._sample(batch)
        self._finished.update(zip(range(first_ticket, first_ticket + len(batch)), groups, strict=True))

    def _sample_in_parts(self, request: RolloutRequest) -> RolloutGroup:
        """A group that is larger than what fits side by side."""
        size = self.max_concurrent_rollouts
        chunks = [request.seeds[first : first + size] for first in range(0, len(request.seeds), size)]
        with torch.inference_mode():
            parts = [self._sample([replace(request, seeds=seeds)])[0] for seeds in chunks]
        return replace(parts[0], rollouts=tuple(rollout for part in parts for rollout in part.rollouts))

    def _sample(self, batch: list[RolloutRequest]) -> list[RolloutGroup]:
        was_training = self.policy.training
        self.policy.eval()
        find_stop = _StopStrings(self.tokenizer, batch[0].sampling)
        # One autocast for all tokens: weights are cast once, and leaving it drops the casts before the next update.
        with autocast(next(self.policy.parameters()).device, self.dtype):
            decoding = _Decoding(self.policy, batch)
            for position in range(batch[0].sampling.max_response_tokens):
                more = decoding.step(position, find_stop)
                if self._on_tokens is not None:
                    decoding.tell(position, batch, self._on_tokens)
                if not more:
                    break
        self.policy.train(was_training)
        rollouts = iter(self._rollouts(decoding, batch[0].sampling))
        return [
            RolloutGroup(
                request.index, request.problem, request.prompt_ids, tuple(next(rollouts) for _ in request.seeds)
            )
            for request in batch
        ]

    def _rollouts(self, decoding: _Decoding, sampling: Sampling) -> Iterator[Rollout]:
        for row, length in enumerate(decoding.lengths.tolist()):
            ids = decoding.tokens[row, :length].copy()
            reason: FinishReason = "stop" if decoding.stopped[row] else "length"
            text = response_text(ids, sampling, self.tokenizer)
            yield Rollout(ids, decoding.logprobs[row, :length].copy(), text, reason, self.policy_version)


class _StopStrings:
    """Finds rows whose text now contains a stop string; reads the tail of the response only."""

    def __init__(self, tokenizer: Any, sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._strings = sampling.stop_strings
        # A token adds at least one byte, so this many tokens hold any stop string that ends in the newest one.
        self._tail_tokens = 1 + max((len(stop.encode()) for stop in self._strings), default=0)

    def __call__(
        self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int64], length: int
    ) -> npt.NDArray[np.bool_]:
        """Which of `rows` [R] of tokens [B, >= length] stop at response length `length`, [R]."""
        if not self._strings:
            return np.zeros(len(rows), dtype=bool)
        tails = self._tokenizer.batch_decode(tokens[:, max(0, length - self._tail_tokens) : length][rows])
        return np.array([any(stop in tail for stop in self._strings) for tail in tails])


class _Decoding:
    """The rows of one batch while they are decoded: cache, masks and what was sampled so far."""

    def __init__(self, policy: Any, batch: list[RolloutRequest]) -> None:
        self._policy = policy
        self._sampling = batch[0].sampling
        self._device = next(policy.parameters()).device
        sizes = [len(request.seeds) for request in batch]
        rows = sum(sizes)
        limit = self._sampling.max_response_tokens
        self.tokens = np.zeros((rows, limit), dtype=np.int32)
        self.logprobs = np.zeros((rows, limit), dtype=np.float32)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.stopped = np.zeros(rows, dtype=bool)
        self._active = np.arange(rows)  # which row each line of the cache belongs to
        self._alive = np.ones(rows, dtype=bool)  # per line of the cache
        self._uniform = UniformStreams([seed for request in batch for seed in request.seeds])
        self._stop_ids = torch.tensor(self._sampling.stop_token_ids, dtype=torch.int64, device=self._device)
        self._prefill(batch, torch.tensor(sizes, device=self._device))

    def _prefill(self, batch: list[RolloutRequest], sizes: Tensor) -> None:
        lengths = torch.tensor([len(request.prompt_ids) for request in batch], device=self._device)
        longest = int(lengths.max())
        ids = torch.zeros(len(batch), longest, dtype=torch.int64)
        for row, request in enumerate(batch):
            ids[row, longest - len(request.prompt_ids) :] = torch.from_numpy(request.prompt_ids.astype(np.int64))
        positions = torch.arange(longest, device=self._device)[None] - (longest - lengths)[:, None]
        self._cache = GrowingCache()
        mask = prompt_mask(lengths, longest)
        logits = self._forward(ids.to(self._device), positions.clamp(min=0), mask)
        self._cache.repeat(sizes)
        self._logits = logits.repeat_interleave(sizes, dim=0)
        self._prompt_lengths = lengths.repeat_interleave(sizes)
        real = positions.repeat_interleave(sizes, dim=0) >= 0
        room = torch.ones(len(real), self._sampling.max_response_tokens, dtype=torch.bool, device=self._device)
        self._visible = torch.cat([real, room], dim=1)  # [B, prompt and response], False on padding
        self._longest_prompt = longest

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Logits of the last position, [B, V]; extends the cache."""
        hidden = self._policy.get_decoder()(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        logits: Tensor = self._policy.get_output_embeddings()(hidden)
        return logits

    def step(self, position: int, find_stop: _StopStrings) -> bool:
        """Draw response token `position` of every live row and run the forward for the next; False when all ended."""
        drawn, logprobs = next_tokens(self._logits, self._uniform.at(position, self._device), self._sampling)
        ended = torch.isin(drawn, self._stop_ids).cpu().numpy()
        live = self._active[self._alive]
        self.tokens[live, position] = drawn.cpu().numpy()[self._alive]
        self.logprobs[live, position] = logprobs.cpu().numpy()[self._alive]
        self.lengths[live] = position + 1
        ended |= find_stop(self.tokens, self._active, position + 1)
        self.stopped[self._active[self._alive & ended]] = True
        self._alive &= ~ended
        if not self._alive.any() or position + 1 == self._sampling.max_response_tokens:
            return False
        drawn = self._drop_ended_rows(drawn)
        end = self._longest_prompt + position + 1
        positions = (self._prompt_lengths + position)[:, None]
        self._logits = self._forward(drawn[:, None], positions, self._visible[:, None, None, :end])
        return True

    def tell(self, position: int, batch: list[RolloutRequest], on_tokens: OnTokens) -> None:
        """Tell of the tokens drawn at `position`."""
        rows = [(request.index, seed) for request in batch for seed in request.seeds]
        at_limit = position + 1 == self._sampling.max_response_tokens
        for row in np.flatnonzero(self.lengths == position + 1):
            reason: FinishReason | None = "stop" if self.stopped[row] else "length" if at_limit else None
            index, seed = rows[row]
            on_tokens(index, seed, [int(self.tokens[row, position])], reason)

    def _drop_ended_rows(self, drawn: Tensor) -> Tensor:
        """Compact the cache once a quarter of its rows have ended; copying more often costs more than it saves."""
        if self._alive.sum() > 0.75 * len(self._alive):
            return drawn
        rows = torch.from_numpy(np.flatnonzero(self._alive)).to(self._device)
        self._cache.keep(rows)
        self._uniform.keep(rows)
        self._prompt_lengths, self._visible = self._prompt_lengths[rows], self._visible[rows]
        self._active = self._active[self._alive]
        self._alive = self._alive[self._alive]
        return drawn[rows]

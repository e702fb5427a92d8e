"""A vLLM engine beside the policy in one process: weights are handed over, and on one GPU the two take turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dapo_cli.backend.arrivals import reload_whole
from dapo_cli.backend.probe import compare, largest_allowed, perturbed, policy_logprobs, probe_sequences, prove
from dapo_cli.policy.lora import save_adapter
from dapo_cli.policy.sharded_load import local_model_folder
from dapo_cli.policy.weights import policy_weights
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.streaming import OnTokens
from dapo_cli.rollout.vllm_engine import VLLMEngine
from dapo_cli.types import RolloutGroup, RolloutRequest

Note = Callable[[str], None]
Prompts = Sequence[npt.NDArray[np.int32]]


class _WholeVLLM(VLLMEngine):
    """A vLLM engine that refuses an update with gaps."""

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """As the base class does it.

        Raises:
            StaleWeights: some weight is not among them.
        """
        self._require_idle("load weights")
        self._engine.collective_rpc(reload_whole, args=(weights,))
        self._clear_cache()


class InProcessVLLM:
    """vLLM as the local backend's engine; it has a copy of the weights, proven by log-probs to be the policy's."""

    def __init__(
        self, recipe: Recipe, resolved_model: str, tokenizer: Any, policy: Any, prompts: Prompts, note: Note
    ) -> None:
        self.recipe = recipe
        self.policy = policy
        self._note = note
        device = next(policy.parameters()).device.type
        folder = str(local_model_folder(resolved_model, recipe.model.revision))
        self._engine = _WholeVLLM(recipe, folder, tokenizer, "cuda" if device == "cuda" else "cpu", note)
        self._probe = probe_sequences(prompts, policy.config.get_text_config().vocab_size)
        self._base_model = folder
        self._adapters_alone = recipe.model.lora is not None and recipe.model.lora.sync == "adapter"
        self._turns = device == "cuda"
        self._asleep = False
        self._limit: float | None = None  # set by the canary
        self._in_sync_with: int | None = None

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield their groups in the order of submission."""
        return self._engine.generate(requests)

    def generate_as_finished(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield each group as soon as it is whole."""
        return self._engine.generate_as_finished(requests)

    def stream(self, requests: Sequence[RolloutRequest], on_tokens: OnTokens) -> None:
        """Sample `requests` now; `on_tokens` hears of each token as it comes."""
        self._engine.stream(requests, on_tokens)

    def rest(self) -> None:
        """On a GPU the engine gives its memory to the policy; on a CPU it cannot."""
        if self._turns and not self._asleep:
            self._engine.sleep()
            self._asleep = True

    def weights_changed(self) -> None:
        """The next sync has something to send."""
        self._in_sync_with = None

    def sync(self, policy_version: int) -> dict[str, float]:
        """Hand the weights over and compare log-probs; the first time with perturbed weights too, as a canary.

        Raises:
            StaleWeights: some weight did not arrive, or the engine's log-probs are not the policy's.
        """
        if self._in_sync_with == policy_version:
            return {}
        limit = self._limit
        if limit is None:
            moved = prove(
                lambda: perturbed(self.policy),
                lambda: self._send(everything=True),
                self._policy_logprobs,
                lambda: [self._engine.prompt_logprobs(self._probe)],
                self.recipe.model.dtype,
            )
            limit = largest_allowed(self.recipe.model.dtype, moved)
            self._note(
                f"canary: the engine followed weights that moved log-probs by {moved:.2g}; probe limit {limit:.2g}"
            )
        self._send(everything=self._limit is None)
        self._limit = limit
        metrics = compare(
            self._policy_logprobs(),
            self._engine.prompt_logprobs(self._probe),
            self.recipe.model.dtype,
            limit,
            f"sync of step {policy_version}",
        )
        self._engine.policy_version = self._in_sync_with = policy_version
        return metrics

    def _send(self, *, everything: bool) -> None:
        if self._asleep:
            self._engine.wake(["weights"])
        if everything or self._asleep or not self._adapters_alone:
            dtype = getattr(torch, self.recipe.model.dtype)
            self._engine.load_weights(policy_weights(self.policy, dtype, merged=not self._adapters_alone))
        if self._asleep:
            self._engine.wake(["kv_cache"])
            self._asleep = False
        if self._adapters_alone and self.recipe.model.lora is not None:
            with tempfile.TemporaryDirectory(prefix="dapo-adapter-") as folder:
                save_adapter(self.policy, self.recipe.model.lora, Path(folder), self._base_model)
                self._engine.set_adapter(Path(folder))

    def _policy_logprobs(self) -> list[npt.NDArray[np.float32]]:
        return policy_logprobs(self.policy, self._probe, self.recipe)

    def close(self) -> None:
        """Release the engine's memory."""
        self._engine.close()

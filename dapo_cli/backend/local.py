"""The local backend: policy and engine in one process, on the CPU or one GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dapo_cli.backend.in_process import InProcessVLLM
from dapo_cli.errors import DapoError, UsageError
from dapo_cli.policy import sharded_checkpoint
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import share_logprobs
from dapo_cli.policy.lora import add_adapters, load_trained_tensors, trainable_summary, trained_tensors
from dapo_cli.policy.model import load_model
from dapo_cli.policy.partition import shares
from dapo_cli.policy.update import make_optimizer, restore_optimizer, update
from dapo_cli.recipe.schema import Backend as BackendSection
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.types import RolloutGroup, RolloutRequest

# Below this a second thread costs more than it gives.
_ONE_THREAD_PARAMETERS = 5_000_000


class LocalBackend:
    """Trains and samples in this process: with the weights that are trained, or with vLLM's copy of them."""

    def __init__(
        self,
        recipe: Recipe,
        resolved_model: str,
        tokenizer: Any,
        prompts: Sequence[npt.NDArray[np.int32]] = (),
        note: Callable[[str], None] = print,
    ) -> None:
        self.recipe = recipe
        self.device = pick_device(recipe.backend)
        self.policy = load_model(resolved_model, recipe.model, self.device)
        if recipe.model.lora is not None:
            add_adapters(self.policy, recipe.model.lora, recipe.rollout.seed, recipe.model.dtype)
        num_parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        self.threads = set_threads(recipe.backend, num_parameters)
        self.optimizer = make_optimizer(self.policy, recipe.train)
        self.engine: HFEngine | InProcessVLLM
        if recipe.rollout.engine == "vllm":
            self.engine = InProcessVLLM(recipe, resolved_model, tokenizer, self.policy, prompts, note)
        else:
            limit = recipe.rollout.max_concurrent_rollouts
            self.engine = HFEngine(self.policy, tokenizer, recipe.model.dtype, limit)

    @property
    def trained_parameters(self) -> int:
        """How many parameters are trained."""
        return sum(tensor.numel() for tensor in trained_tensors(self.policy).values())

    def describe(self) -> str:
        """Where it runs, in words."""
        trained = trainable_summary(self.policy)
        return f"{self.recipe.rollout.engine} engine on {self.device}, {self.threads} CPU threads; {trained}"

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield their groups in the order of submission."""
        return self.engine.generate(requests)

    def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Log-probs of every response token under the current policy, [response tokens].

        Packs are cut exactly as the updates cut them, so that the first update's ratio is exactly 1.
        """
        self._engine_rests()
        train = self.recipe.train
        minibatches = batch.minibatches(train.prompts_per_minibatch)
        return np.concatenate(
            [share_logprobs(self.policy, shares(minibatch, 1, train)[0], self.recipe) for minibatch in minibatches]
        )

    def update(self, minibatch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        self._engine_rests()
        if isinstance(self.engine, InProcessVLLM):
            self.engine.weights_changed()
        share = shares(minibatch, 1, self.recipe.train)[0]
        return update(self.policy, self.optimizer, share, learning_rate, self.recipe)

    def _engine_rests(self) -> None:
        if isinstance(self.engine, InProcessVLLM):
            self.engine.rest()

    def sync_weights(self, policy_version: int) -> dict[str, float]:
        """Give vLLM the weights and prove that it has them; the hf engine has nothing to copy.

        Raises:
            StaleWeights: vLLM's log-probs are not the policy's.
        """
        if isinstance(self.engine, InProcessVLLM):
            return self.engine.sync(policy_version)
        self.engine.policy_version = policy_version
        return {}

    def save(self, folder: Path) -> None:
        """Write model.safetensors (float32, a tied head once), optimizer.pt and rng.pt into `folder`.

        With LoRA the adapters alone: the base weights are those of the base model.

        Raises:
            OSError: they cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file, save_model

        try:
            if self.recipe.model.lora is None:
                save_model(self.policy, str(folder / "model.safetensors"))
            else:
                save_file(trained_tensors(self.policy), str(folder / "model.safetensors"))
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        except (SafetensorError, RuntimeError) as error:  # what both libraries make of a full disk
            raise OSError(str(error).strip().splitlines()[0]) from error
        cuda = torch.cuda.get_rng_state_all() if self.device.type == "cuda" else []
        torch.save({"cpu": torch.get_rng_state(), "cuda": cuda}, folder / "rng.pt")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, or what the ranks of a cluster did.

        Raises:
            DapoError: the checkpoint's tensors are not those of this model.
        """
        if isinstance(self.engine, InProcessVLLM):
            self.engine.weights_changed()
        if (folder / sharded_checkpoint.FOLDER).is_dir():
            sharded_checkpoint.load_sharded(folder, self.policy, self.optimizer, self.recipe.train)
            return
        self._load_weights(folder)
        optimizer_state = torch.load(folder / "optimizer.pt", map_location=self.device, weights_only=True)
        restore_optimizer(self.optimizer, optimizer_state, self.recipe.train)
        random_state = torch.load(folder / "rng.pt", weights_only=True)
        torch.set_rng_state(random_state["cpu"])
        if self.device.type == "cuda" and random_state["cuda"]:
            torch.cuda.set_rng_state_all(random_state["cuda"])

    def _load_weights(self, folder: Path) -> None:
        from safetensors.torch import load_file
        from safetensors.torch import load_model as load_safetensors

        file = folder / "model.safetensors"
        try:
            if self.recipe.model.lora is None:
                load_safetensors(self.policy, file, strict=True, device=str(self.device))
            else:
                load_trained_tensors(self.policy, load_file(file, device=str(self.device)))
        except RuntimeError as error:
            raise DapoError(f"{folder}: not a checkpoint of this model: {str(error).splitlines()[-1]}") from error

    def close(self) -> None:
        """Drop the model and its optimizer."""
        if isinstance(self.engine, InProcessVLLM):
            self.engine.close()
        del self.engine, self.optimizer, self.policy
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def pick_device(backend: BackendSection) -> torch.device:
    """The device the recipe asks for.

    Raises:
        UsageError: it asks for CUDA and there is none.
    """
    available = torch.cuda.is_available()
    if backend.device == "cuda" and not available:
        raise UsageError(
            "backend.device: cuda: torch sees no GPU", hint="backend.device: auto, or install a CUDA torch"
        )
    return torch.device("cuda" if available and backend.device != "cpu" else "cpu")


def set_threads(backend: BackendSection, num_parameters: int, processes: int = 1) -> int:
    """Set torch's CPU threads for a model of this size and return how many; `processes` compute side by side.

    Raises:
        UsageError: more threads than this machine has cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if backend.threads is not None and backend.threads > cores:
        raise UsageError(f"backend.threads: {backend.threads}, but this process may use {cores} cores")
    if backend.threads is not None:
        threads = backend.threads
    else:
        threads = 1 if num_parameters < _ONE_THREAD_PARAMETERS else max(1, cores // processes)
    torch.set_num_threads(threads)
    return threads

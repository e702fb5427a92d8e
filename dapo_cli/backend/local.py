"""The local backend: policy and engine in one process, on the CPU or one GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import share_logprobs
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
    """Trains and samples with one model in this process; the engine always sees the newest weights."""

    def __init__(self, recipe: Recipe, resolved_model: str, tokenizer: Any) -> None:
        self.recipe = recipe
        self.device = pick_device(recipe.backend)
        self.policy = load_model(resolved_model, recipe.model, self.device)
        num_parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        self.threads = set_threads(recipe.backend, num_parameters)
        self.optimizer = make_optimizer(self.policy, recipe.train)
        engines = {"hf": HFEngine}
        engine = engines[recipe.rollout.engine]
        self.engine = engine(self.policy, tokenizer, recipe.model.dtype, recipe.rollout.max_concurrent_rollouts)

    def describe(self) -> str:
        """Where it runs, in words."""
        return f"{self.recipe.rollout.engine} engine on {self.device}, {self.threads} CPU threads"

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield their groups in the order of submission."""
        return self.engine.generate(requests)

    def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Log-probs of every response token under the current policy, [response tokens].

        Packs are cut exactly as the updates cut them, so that the first update's ratio is exactly 1.
        """
        train = self.recipe.train
        minibatches = batch.minibatches(train.prompts_per_minibatch)
        return np.concatenate(
            [share_logprobs(self.policy, shares(minibatch, 1, train)[0], self.recipe) for minibatch in minibatches]
        )

    def update(self, minibatch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        share = shares(minibatch, 1, self.recipe.train)[0]
        return update(self.policy, self.optimizer, share, learning_rate, self.recipe)

    def sync_weights(self, policy_version: int) -> dict[str, float]:
        """Nothing to copy: the engine samples from the policy itself. Stamps the version."""
        self.engine.policy_version = policy_version
        return {}

    def save(self, folder: Path) -> None:
        """Write model.safetensors (float32, a tied head once), optimizer.pt and rng.pt into `folder`.

        Raises:
            OSError: they cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_model

        try:
            save_model(self.policy, str(folder / "model.safetensors"))
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        except (SafetensorError, RuntimeError) as error:  # what both libraries make of a full disk
            raise OSError(str(error).strip().splitlines()[0]) from error
        cuda = torch.cuda.get_rng_state_all() if self.device.type == "cuda" else []
        torch.save({"cpu": torch.get_rng_state(), "cuda": cuda}, folder / "rng.pt")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        Raises:
            DapoError: the checkpoint's tensors are not those of this model.
        """
        from safetensors.torch import load_model as load_safetensors

        try:
            load_safetensors(self.policy, folder / "model.safetensors", strict=True, device=str(self.device))
        except RuntimeError as error:
            raise DapoError(f"{folder}: not a checkpoint of this model: {str(error).splitlines()[-1]}") from error
        optimizer_state = torch.load(folder / "optimizer.pt", map_location=self.device, weights_only=True)
        restore_optimizer(self.optimizer, optimizer_state, self.recipe.train)
        random_state = torch.load(folder / "rng.pt", weights_only=True)
        torch.set_rng_state(random_state["cpu"])
        if self.device.type == "cuda" and random_state["cuda"]:
            torch.cuda.set_rng_state_all(random_state["cuda"])

    def close(self) -> None:
        """Drop the model and its optimizer."""
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


def set_threads(backend: BackendSection, num_parameters: int) -> int:
    """Set torch's CPU threads for a model of this size and return how many.

    Raises:
        UsageError: more threads than this machine has cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if backend.threads is not None and backend.threads > cores:
        raise UsageError(f"backend.threads: {backend.threads}, but this process may use {cores} cores")
    if backend.threads is not None:
        threads = backend.threads
    else:
        threads = 1 if num_parameters < _ONE_THREAD_PARAMETERS else cores
    torch.set_num_threads(threads)
    return threads

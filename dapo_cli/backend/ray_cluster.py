"""The cluster backend: FSDP2 policy ranks and vLLM replicas as Ray actors, driven from this process.

No weight passes through here. Rollouts arrive once, as numpy arrays, and each rank is sent its own rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.backend.engine_fleet import EngineFleet
from dapo_cli.backend.hardware import described, wanted
from dapo_cli.backend.placement import place_processes
from dapo_cli.backend.probe import compare, largest_allowed, probe_sequences, prove
from dapo_cli.backend.ray_session import close_session, fetch, gather, open_session
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.partition import assemble, shares
from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.schema import Recipe
from dapo_cli.types import RolloutGroup, RolloutRequest

Note = Callable[[str], None]
Prompts = Sequence[npt.NDArray[np.int32]]


class RayBackend:
    """Trains and samples on the processes of a Ray cluster."""

    def __init__(self, recipe: Recipe, resolved_model: str, prompts: Prompts, vocabulary: int, note: Note) -> None:
        self.recipe = recipe
        self.shape = cluster_shape(recipe)
        self._note = note
        self._probe = probe_sequences(prompts, vocabulary)
        self._limit: float | None = None  # set by the canary
        self._in_sync_with: int | None = None
        self._group: Any = None
        self._ranks: tuple[Any, ...] = ()
        self._engines = EngineFleet((), 0.0)
        self._started_ray = open_session(recipe, self.shape.policy_ranks + self.shape.engine_replicas)
        try:
            # The processes have working directories of their own.
            self._start(str(Path(resolved_model).resolve()) if Path(resolved_model).is_dir() else resolved_model)
        except BaseException:
            self.close()
            raise

    def _start(self, resolved_model: str) -> None:
        import ray

        asked = f"{self.shape.policy_ranks} policy ranks and {self.shape.engine_replicas} vLLM replicas"
        self._note(f"asked for: {wanted(self.recipe)}, {asked}; there are: {described(ray.nodes())}")
        started = time.perf_counter()
        placed = place_processes(self.recipe, resolved_model, self.shape)
        self._group, self._ranks = placed.group, placed.ranks
        self._engines = EngineFleet(placed.engines, self.recipe.backend.timeout_seconds)
        address = fetch(self._ranks[0].free_address.remote(), "policy rank 0", "starting")
        count = len(self._ranks)
        engines_start = self._engines.begin("start")  # they take longest: ranks load meanwhile
        told = self._call("start", [(rank, count, address) for rank in range(count)])
        self._told: dict[str, Any] = told[0]
        engines_start()
        self._call("connect", [(placed.engines,)] * count)
        self._note(f"{count + len(placed.engines)} processes started in {time.perf_counter() - started:.0f} seconds")

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` on every rank at once, each with its own arguments."""
        refs = [getattr(rank, method).remote(*each) for rank, each in zip(self._ranks, arguments, strict=True)]
        names = [f"policy rank {number}" for number in range(len(refs))]
        return gather(refs, names, method.replace("_", " "), self.recipe.backend.timeout_seconds)

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self._call(method, [arguments] * len(self._ranks))

    @property
    def trained_parameters(self) -> int:
        """How many parameters are trained, over all ranks."""
        return int(self._told["trained_parameters"])

    def describe(self) -> str:
        """Where it runs, in words."""
        backend, shape = self.recipe.backend, self.shape
        wires = "NCCL" if backend.gpus_per_node else "gloo"
        return (
            f"{shape.policy_ranks} FSDP2 ranks over {wires}, {self._told['threads']} CPU threads each "
            f"({self._told['summary']}); {shape.engine_replicas} vLLM replicas of {shape.gpus_per_replica} GPUs, "
            f"{backend.placement}; nodes: {backend.nodes}"
        )

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` at once and yield their groups in the order of submission.

        Raises:
            DapoError: a replica died, or none has finished a group for `backend.timeout_seconds`.
        """
        return self._engines.generate(requests)

    def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Log-probs of every response token under the current policy, [response tokens]; packed as updates pack."""
        self._engines_rest()
        train, count = self.recipe.train, len(self._ranks)
        minibatches = list(batch.minibatches(train.prompts_per_minibatch))
        dealt = [shares(minibatch, count, train) for minibatch in minibatches]
        found = self._call("logprobs", [([parts[rank] for parts in dealt],) for rank in range(count)])
        values = [assemble(each, [of_rank[i] for of_rank in found]) for i, each in enumerate(minibatches)]
        return np.concatenate(values)

    def update(self, minibatch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimizer step over all ranks; returns its metrics."""
        self._engines_rest()
        self._in_sync_with = None
        parts = shares(minibatch, len(self._ranks), self.recipe.train)
        metrics: dict[str, float] = self._call("update", [(part, learning_rate) for part in parts])[0]
        return metrics

    def _engines_rest(self) -> None:
        if self.recipe.backend.placement == "colocated":
            self._engines.sleep()

    def sync_weights(self, policy_version: int) -> dict[str, float]:
        """Send the weights to every replica and compare log-probs; the first time also perturbed ones, as a canary.

        Raises:
            StaleWeights: some weight did not arrive, or a replica's log-probs are not the policy's.
        """
        if self._in_sync_with == policy_version:
            return {}
        dtype = self.recipe.model.dtype
        limit = self._limit
        if limit is None:
            moved = prove(
                self._perturbation,
                lambda: self._send(policy_version, everything=True),
                self._policy_logprobs,
                lambda: self._engines.call("prompt_logprobs", self._probe),
                dtype,
            )
            limit = largest_allowed(dtype, moved)
            self._note(
                f"canary: every engine followed weights that moved log-probs by {moved:.2g}; probe limit {limit:.2g}"
            )
        # An engine that slept has lost even the weights that LoRA does not change.
        self._send(policy_version, everything=self._limit is None or self._engines.asleep)
        self._limit = limit
        engines = self._engines.begin("prompt_logprobs", self._probe)  # side by side with the policy's own
        policy = self._policy_logprobs()
        found = [
            compare(policy, engine, dtype, limit, f"sync of step {policy_version}, engine {number}")
            for number, engine in enumerate(engines())
        ]
        self._in_sync_with = policy_version
        return {name: max(each[name] for each in found) for name in found[0]}

    def _send(self, policy_version: int, *, everything: bool) -> None:
        self._engines.wake(lambda: self._call_all("send_weights", policy_version, everything))

    def _policy_logprobs(self) -> list[npt.NDArray[np.float32]]:
        found: list[npt.NDArray[np.float32]] = self._call_all("probe_logprobs", self._probe)[0]
        return found

    @contextlib.contextmanager
    def _perturbation(self) -> Iterator[None]:
        self._call_all("perturb")
        try:
            yield
        finally:
            self._call_all("restore")

    def save(self, folder: Path) -> Callable[[], None] | None:
        """Write weights, optimizer and random state into `folder`, which all nodes must see, sharded."""
        self._call_all("save", folder.resolve())
        if self.recipe.checkpoint.asynchronous:
            return self._finish_saving
        return None

    def _finish_saving(self) -> None:
        self._call_all("finish_saving")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, on any number of ranks."""
        self._in_sync_with = None
        self._call_all("load", folder.resolve())

    def close(self) -> None:
        """End the processes; stop Ray where this backend started it."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if ray.is_initialized():
            for ref in [rank.finish.remote() for rank in self._ranks]:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.get(ref, timeout=_CLOSING_SECONDS)
            self._engines.close()
            for rank in self._ranks:
                ray.kill(rank)
            if self._group is not None:
                remove_placement_group(self._group)
        self._ranks, self._group = (), None
        close_session(self._started_ray)


_CLOSING_SECONDS = 30.0

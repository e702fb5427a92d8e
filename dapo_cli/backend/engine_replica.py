"""One vLLM replica: a thin class that the cluster backend runs as an actor, on its own GPUs or those it is told.

The methods of the weight update carry vLLM's names, so that vLLM's trainer side drives them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.backend.arrivals import of_worker
from dapo_cli.recipe.schema import Recipe
from dapo_cli.types import RolloutGroup, RolloutRequest


class EngineReplica:
    """An asynchronous vLLM engine with a copy of the policy."""

    def __init__(self, recipe: Recipe, resolved_model: str, gpus: Sequence[int] | None) -> None:
        self.recipe = recipe
        self.resolved_model = resolved_model
        if gpus is not None:  # colocated: Ray gave this process no GPU, it uses those of the ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        self._engine: Any = None

    async def start(self) -> None:
        """Start the engine; its weights are random until the first update.

        Raises:
            UsageError: no fitting vLLM is installed, or the model is not one it knows.
        """
        from dapo_cli.backend.weight_sync import WORKER_EXTENSION, transport_for
        from dapo_cli.policy.model import load_tokenizer
        from dapo_cli.policy.sharded_load import local_model_folder
        from dapo_cli.rollout.vllm_arguments import Device
        from dapo_cli.rollout.vllm_async import AsyncVLLMEngine

        recipe = self.recipe
        device: Device = "cuda" if recipe.backend.gpus_per_node else "cpu"
        folder = str(local_model_folder(self.resolved_model, recipe.model.revision))
        tokenizer = load_tokenizer(folder, recipe.model)
        transport = f"whole_{transport_for(recipe.backend.placement, device)}"
        self._engine = AsyncVLLMEngine(recipe, folder, tokenizer, device, transport, WORKER_EXTENSION)

    async def generate_group(self, request: RolloutRequest) -> RolloutGroup:
        """All rollouts of one problem; cancelling the call gives them up."""
        group: RolloutGroup = await self._engine.generate_group(request)
        return group

    async def prompt_logprobs(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of tokens 1.. of each sequence at temperature 1."""
        found: list[npt.NDArray[np.float32]] = await self._engine.prompt_logprobs(sequences)
        return found

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Connect to the trainer."""
        await self._engine.init_weight_transfer_engine(request)

    async def start_weight_update(self) -> None:
        """Begin to replace the weights; nothing is sampling then."""
        await self._engine.start_weight_update()

    async def update_weights(self, request: Any) -> None:
        """Receive one bucket of weights."""
        await self._engine.update_weights(request)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update: the old cache is gone, and what is sampled from now on bears `weight_version`.

        Raises:
            StaleWeights: some weight did not arrive.
        """
        try:
            await self._engine.finish_weight_update(weight_version)
        except Exception as error:
            raise of_worker(error) from error
        if weight_version is not None:
            self._engine.policy_version = int(weight_version)

    async def set_adapter(self, files: Mapping[str, bytes], policy_version: int) -> None:
        """Sample with the LoRA adapter whose files are given by name, in place of the one before."""
        with tempfile.TemporaryDirectory(prefix="dapo-adapter-") as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            await self._engine.set_adapter(Path(folder))
        self._engine.policy_version = policy_version

    async def sleep(self) -> bool:
        """Drop weights and cache from the GPU; returns False where that is not possible."""
        slept: bool = await self._engine.sleep()
        return slept

    async def wake(self, tags: Sequence[str]) -> None:
        """Take memory again for `tags`: weights, kv_cache."""
        await self._engine.wake(tags)

    async def close(self) -> None:
        """End the engine's processes."""
        if self._engine is not None:
            self._engine.close()

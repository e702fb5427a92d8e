"""The vllm engine of a cluster: vLLM's asynchronous engine in processes of its own, driven from one event loop.

Weights arrive through vLLM's weight-transfer engines; the methods that drive them carry vLLM's names, so that its own
clients can call them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import DapoError
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.vllm_arguments import (
    Device,
    check_request,
    check_sequences,
    engine_arguments,
    max_model_tokens,
    sampling_params,
    scoring_params,
)
from dapo_cli.rollout.vllm_environment import check_vllm, in_other_processes, set_defaults
from dapo_cli.rollout.vllm_outputs import PendingGroup, prompt_logprobs
from dapo_cli.types import RolloutGroup, RolloutRequest

_SHUTDOWN_SECONDS = 20.0

Result = TypeVar("Result")


class AsyncVLLMEngine:
    """Samples groups with vLLM. Its weights are random until the first weight update.

    `weight_transfer_backend` names a weight-transfer engine of vLLM, or one that importing the module of
    `worker_extension` ("module.Class") registers in vLLM's worker processes.

    Raises:
        UsageError: no fitting vLLM is installed.
    """

    def __init__(
        self,
        recipe: Recipe,
        model_folder: str,
        tokenizer: Any,
        device: Device,
        weight_transfer_backend: str,
        worker_extension: str = "",
    ) -> None:
        check_vllm(device)
        set_defaults()
        self.tokenizer = tokenizer
        self.device = device
        self.policy_version = 0
        self._longest_tokens = max_model_tokens(recipe)
        self._submitted = 0
        self._adapter: Any = None
        arguments = engine_arguments(recipe, model_folder, device=device) | {"worker_extension_cls": worker_extension}
        with in_other_processes(device, recipe.rollout.enforce_eager, recipe.rollout.tensor_parallel):
            self._engine = _start(arguments, weight_transfer_backend)

    async def generate_group(self, request: RolloutRequest) -> RolloutGroup:
        """All rollouts of one problem, stamped with the version of the weights that sampled them.

        Cancelling it gives up its rollouts.

        Raises:
            UsageError: a request that vLLM would change or cut.
            DapoError: the engine gave up or died.
            RuntimeError: the weights changed while it was sampled.
        """
        check_request(request, self._longest_tokens)
        group = PendingGroup(request, self.tokenizer, self.policy_version)

        async def sample(number: int, seed: int) -> None:
            output = await self._run(request.prompt_ids, sampling_params(request.sampling, seed))
            group.finish(number, output.outputs[0], self.policy_version)

        await _all([sample(number, seed) for number, seed in enumerate(request.seeds)])
        return group.group()

    async def prompt_logprobs(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of tokens 1, 2, ... of each sequence [T] given those before, at temperature 1; each [T - 1].

        Logits of a whole sequence exist at once: on a GPU keep sequences to a few hundred tokens.

        Raises:
            ValueError: a sequence that does not leave room for one more token.
        """
        check_sequences(sequences, self._longest_tokens)
        outputs = await _all([self._run(sequence, scoring_params()) for sequence in sequences])
        return [prompt_logprobs(output, sequence) for output, sequence in zip(outputs, sequences, strict=True)]

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Connect to the trainer; `request` is vLLM's request object, or the `init_info` in it."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        if isinstance(request, dict):
            request = WeightTransferInitRequest(init_info=request)
        await self._engine.init_weight_transfer_engine(request)

    async def start_weight_update(self) -> None:
        """Begin to replace the weights.

        Raises:
            RuntimeError: rollouts are under way.
        """
        self._require_idle("load weights")
        await self._engine.start_weight_update()

    async def update_weights(self, request: Any) -> None:
        """Receive one bucket of weights; `request` is vLLM's request object, or the `update_info` in it."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        if isinstance(request, dict | list):
            request = WeightTransferUpdateRequest(update_info=request)
        await self._engine.update_weights(request)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End what `start_weight_update` began, and forget everything computed with the old weights."""
        await self._engine.finish_weight_update(weight_version)
        await self.reset_cache()

    async def reset_cache(self) -> None:
        """Forget the keys and values of every prompt.

        Raises:
            DapoError: some are still in use.
        """
        if not await self._engine.reset_prefix_cache():
            raise DapoError("vLLM: the cache of the old weights could not be cleared")

    async def set_adapter(self, folder: Path) -> None:
        """Sample with the LoRA adapter in `folder` (PEFT's format) from now on, in place of the one before.

        Raises:
            RuntimeError: rollouts are under way.
            DapoError: vLLM did not take it, or the cache could not be cleared.
        """
        from vllm.lora.request import LoRARequest

        self._require_idle("change the adapter")
        number = 1 if self._adapter is None else self._adapter.lora_int_id + 1
        if self._adapter is not None:
            await self._engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = LoRARequest(lora_name=f"policy-{number}", lora_int_id=number, lora_path=str(folder))
        if not await self._engine.add_lora(self._adapter):
            raise DapoError(f"vLLM: the adapter in {folder} was not loaded")
        await self.reset_cache()

    async def sleep(self) -> bool:
        """Give the GPU's memory back: weights are dropped, the cache too. Returns False on CPUs: nothing happens.

        Raises:
            RuntimeError: rollouts are under way.
        """
        self._require_idle("sleep")
        if self.device == "cuda":
            await self._engine.sleep(level=2)
        return self.device == "cuda"

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Take memory again, for what `tags` name; weights have to be loaded before anything is sampled."""
        if self.device == "cuda":
            await self._engine.wake_up(list(tags))

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or under way."""
        return int(self._engine.get_num_unfinished_requests())

    def close(self) -> None:
        """End the engine's processes and give up what is under way."""
        if self._engine is not None:
            self._engine.shutdown(timeout=_SHUTDOWN_SECONDS)
        self._engine = None

    async def _run(self, token_ids: npt.NDArray[np.int32], params: Any) -> Any:
        """The finished output of one request."""
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        name = str(self._submitted)
        self._submitted += 1
        prompt = tokens_input(token_ids.tolist())
        final = None
        try:
            async for output in self._engine.generate(prompt, params, name, lora_request=self._adapter):
                final = output
        except EngineDeadError as error:
            raise DapoError("vLLM: the engine's process has died; its own messages say why") from error
        return final

    def _require_idle(self, purpose: str) -> None:
        if self.num_unfinished:
            raise RuntimeError(f"cannot {purpose} while {self.num_unfinished} rollouts are under way")


def _start(arguments: dict[str, Any], weight_transfer_backend: str) -> Any:
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    transfer = WeightTransferConfig(backend=weight_transfer_backend)
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments, weight_transfer_config=transfer))


async def _all(coroutines: list[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all, in order; when one fails or the caller is cancelled, the rest are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

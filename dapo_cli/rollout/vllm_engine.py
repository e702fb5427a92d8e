"""The vllm engine of the local backend: a vLLM engine with its own copy of the weights, in this process.

Every rollout is a request of its own, with its own seed, so that vLLM batches them as they come and go. Whoever waits
for a group drives the engine, and with it all other rollouts that are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dapo_cli.errors import DapoError
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.streaming import OnTokens
from dapo_cli.rollout.vllm_arguments import (
    Device,
    check_request,
    check_sequences,
    engine_arguments,
    max_model_tokens,
    sampling_params,
    scoring_params,
)
from dapo_cli.rollout.vllm_environment import check_vllm, in_this_process, set_defaults
from dapo_cli.rollout.vllm_outputs import PendingGroup, hearing, prompt_logprobs
from dapo_cli.types import RolloutGroup, RolloutRequest

Finish = Callable[[Any], None]


class VLLMEngine:
    """Samples groups with vLLM. Its weights are random until `load_weights` has run, or with `reads_weights` those in
    `model_folder`.

    `note` is told what a user should know and would not see otherwise.

    Raises:
        UsageError: no fitting vLLM is installed.
        RuntimeError: this process has a torch.distributed group, such as that of another engine.
    """

    def __init__(
        self,
        recipe: Recipe,
        model_folder: str,
        tokenizer: Any,
        device: Device,
        note: Callable[[str], None],
        *,
        reads_weights: bool = False,
    ) -> None:
        check_vllm(device)
        set_defaults()
        self.tokenizer = tokenizer
        self.device = device
        self.policy_version = 0
        self._note = note
        self._longest_tokens = max_model_tokens(recipe)
        self._waiting: dict[str, Finish] = {}  # what to do with the output of each unfinished request
        self._abandoned: list[str] = []
        self._submitted = 0
        self._adapter: Any = None
        # vLLM compiles a few helpers even when told not to: tens of seconds on a CPU, for microseconds.
        eager = device == "cpu" and recipe.rollout.enforce_eager
        self._compilation: Callable[[], AbstractContextManager[Any]] = (
            partial(torch.compiler.set_stance, "force_eager") if eager else nullcontext
        )
        arguments = engine_arguments(recipe, model_folder, device=device)
        self._engine = _start(arguments | {"load_format": "auto"} if reads_weights else arguments)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` now; yield their groups in the order of submission.

        Closing or dropping the iterator gives up what it has not yielded.

        Raises:
            UsageError: a request that vLLM would change or cut.
        """
        for request in requests:
            check_request(request, self._longest_tokens)
        return _GroupStream(self, deque(self._submit(request) for request in requests))

    def generate_as_finished(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutGroup]:
        """Submit `requests` now; yield each group as soon as it is whole, whatever came before it.

        Raises:
            UsageError: a request that vLLM would change or cut.
        """
        for request in requests:
            check_request(request, self._longest_tokens)
        pending = [self._submit(request) for request in requests]
        try:
            while pending:
                finished = [group for group in pending if group.complete]
                if finished:
                    pending = [group for group in pending if not group.complete]
                yield from (group.group() for group in finished)
                if not finished:
                    self.step()
        finally:
            self.abandon([name for group in pending for name in group.names])

    def stream(self, requests: Sequence[RolloutRequest], on_tokens: OnTokens) -> None:
        """Sample `requests` now, the same tokens as `generate` gives; `on_tokens` hears of each as it comes.

        What `on_tokens` raises ends the sampling.

        Raises:
            UsageError: a request that vLLM would change or cut.
        """
        for request in requests:
            check_request(request, self._longest_tokens)
        names = []
        for index, prompt_ids, sampling, seeds in ((r.index, r.prompt_ids, r.sampling, r.seeds) for r in requests):
            for seed in seeds:
                params = sampling_params(sampling, seed, streamed=True)
                names.append(self._add(prompt_ids, params, hearing(index, seed, on_tokens)))
        try:
            while not self._waiting.keys().isdisjoint(names):
                self.step()
        finally:
            self.abandon([name for name in names if name in self._waiting])

    def prompt_logprobs(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of tokens 1, 2, ... of each sequence [T] given those before, at temperature 1; each [T - 1].

        Logits of a whole sequence exist at once: on a GPU keep sequences to a few hundred tokens.

        Raises:
            ValueError: a sequence that does not leave room for one more token.
        """
        check_sequences(sequences, self._longest_tokens)
        found: dict[int, npt.NDArray[np.float32]] = {}

        def keep(row: int, output: Any) -> None:
            found[row] = prompt_logprobs(output, sequences[row])

        for row, sequence in enumerate(sequences):
            self._add(sequence, scoring_params(), partial(keep, row))
        while len(found) < len(sequences):
            self.step()
        return [found[row] for row in range(len(sequences))]

    def load_weights(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replace all weights, one layer at a time, and forget everything computed with the old ones.

        `weights` are named as in a checkpoint and grouped by layer; a tied `lm_head.weight` has to be among them.

        Raises:
            RuntimeError: rollouts are under way.
            DapoError: the cache could not be cleared.
        """
        self._require_idle("load weights")
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._clear_cache()

    def set_adapter(self, folder: Path) -> None:
        """Sample with the LoRA adapter in `folder` (PEFT's format) from now on, in place of the one before.

        Raises:
            RuntimeError: rollouts are under way.
            DapoError: vLLM did not take it, or the cache could not be cleared.
        """
        from vllm.lora.request import LoRARequest

        self._require_idle("change the adapter")
        number = 1 if self._adapter is None else self._adapter.lora_int_id + 1
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = LoRARequest(lora_name=f"policy-{number}", lora_int_id=number, lora_path=str(folder))
        if not self._engine.add_lora(self._adapter):
            raise DapoError(f"vLLM: the adapter in {folder} was not loaded")
        self._clear_cache()

    def sleep(self) -> None:
        """Give the GPU's memory back: weights are dropped, the cache too. On CPUs nothing happens, and that is said.

        Raises:
            RuntimeError: rollouts are under way.
        """
        self._require_idle("sleep")
        if self.device == "cpu":
            self._note("vLLM cannot sleep on a CPU: its weights and cache stay in memory during updates")
            return
        self._engine.sleep(level=2)

    def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Take memory again, for what `tags` name; weights have to be loaded before anything is sampled."""
        if self.device == "cuda":
            self._engine.wake_up(list(tags))

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or under way."""
        return len(self._waiting) - sum(name in self._waiting for name in self._abandoned)

    def close(self) -> None:
        """Give up what is under way and release memory and the process group. The engine cannot be used again."""
        if self._engine is None:
            return
        self._give_up_abandoned()
        self._engine.abort_request(list(self._waiting))
        self._waiting.clear()
        self._engine.engine_core.shutdown()
        self._engine.renderer.shutdown()
        self._engine = None

    def step(self) -> None:
        """One forward for everything that is under way; hands out what has finished."""
        self._give_up_abandoned()
        with self._compilation():
            outputs = self._engine.step()
        for output in outputs:
            take = self._waiting.pop if output.finished else self._waiting.get
            finish = take(output.request_id, None)
            if finish is not None:
                finish(output)

    def abandon(self, names: Sequence[str]) -> None:
        """Give up these requests at the next step; safe to call at any moment, as from a garbage collection."""
        self._abandoned.extend(names)

    def _give_up_abandoned(self) -> None:
        if not self._abandoned:
            return
        abandoned, self._abandoned = self._abandoned, []
        self._engine.abort_request([name for name in abandoned if self._waiting.pop(name, None) is not None])

    def _submit(self, request: RolloutRequest) -> PendingGroup:
        group = PendingGroup(request, self.tokenizer, self.policy_version)
        for sample, seed in enumerate(request.seeds):

            def finish(output: Any, sample: int = sample) -> None:
                group.finish(sample, output.outputs[0], self.policy_version)

            group.names.append(self._add(request.prompt_ids, sampling_params(request.sampling, seed), finish))
        return group

    def _add(self, token_ids: npt.NDArray[np.int32], params: Any, finish: Finish) -> str:
        from vllm.inputs.engine import tokens_input

        name = str(self._submitted)
        self._submitted += 1
        self._engine.add_request(name, tokens_input(token_ids.tolist()), params, lora_request=self._adapter)
        self._waiting[name] = finish
        return name

    def _require_idle(self, purpose: str) -> None:
        if self._abandoned:
            self.step()  # what was given up leaves the scheduler
        if self.num_unfinished:
            raise RuntimeError(f"cannot {purpose} while {self.num_unfinished} rollouts are under way")

    def _clear_cache(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise DapoError("vLLM: the cache of the old weights could not be cleared")


class _GroupStream(Iterator[RolloutGroup]):
    """The groups of one call of `generate`, in order."""

    def __init__(self, engine: VLLMEngine, groups: deque[PendingGroup]) -> None:
        self._engine = engine
        self._groups = groups

    def __next__(self) -> RolloutGroup:
        if not self._groups:
            raise StopIteration
        while not self._groups[0].complete:
            self._engine.step()
        return self._groups.popleft().group()

    def close(self) -> None:
        """Give up the groups that were not taken."""
        while self._groups:
            self._engine.abandon(self._groups.popleft().names)

    def __del__(self) -> None:
        self.close()


def _start(arguments: dict[str, Any]) -> Any:
    # vLLM would take over a process group that is there, and destroy it when it closes.
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise RuntimeError("a vLLM engine needs a process without a torch.distributed group, so one engine per process")
    with in_this_process():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(**arguments))

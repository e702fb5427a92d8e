"""From vLLM's outputs to ours, as arrays, as each one finishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import DapoError
from dapo_cli.rollout.response_text import response_text
from dapo_cli.rollout.streaming import OnTokens
from dapo_cli.types import FinishReason, Rollout, RolloutGroup, RolloutRequest, Sampling


class PendingGroup:
    """A group whose rollouts finish one by one. All have to come from weights of version `policy_version`."""

    def __init__(self, request: RolloutRequest, tokenizer: Any, policy_version: int) -> None:
        self.names: list[str] = []
        """The engine's names of the requests."""
        self._request = request
        self._tokenizer = tokenizer
        self._policy_version = policy_version
        self._rollouts: dict[int, Rollout] = {}

    def finish(self, sample: int, output: Any, policy_version: int) -> None:
        """Take the `CompletionOutput` of one sample, finished under weights of `policy_version`.

        Raises:
            RuntimeError: the weights changed while it was sampled.
            DapoError: see `to_rollout`.
        """
        if policy_version != self._policy_version:
            raise RuntimeError(f"weights went from version {self._policy_version} to {policy_version} within a rollout")
        self._rollouts[sample] = to_rollout(output, self._request.sampling, self._tokenizer, policy_version)

    @property
    def complete(self) -> bool:
        """Whether all rollouts have finished."""
        return len(self._rollouts) == len(self._request.seeds)

    def group(self) -> RolloutGroup:
        """The complete group, rollouts in the order of their seeds."""
        rollouts = tuple(self._rollouts[sample] for sample in range(len(self._request.seeds)))
        return RolloutGroup(self._request.index, self._request.problem, self._request.prompt_ids, rollouts)


def to_rollout(output: Any, sampling: Sampling, tokenizer: Any, policy_version: int) -> Rollout:
    """A finished `CompletionOutput` as a rollout; its text is decoded as the hf engine decodes it.

    Raises:
        DapoError: the engine did not finish it, or returned log-probs that do not fit its tokens.
    """
    ids = np.array(output.token_ids, dtype=np.int32)
    text = response_text(ids, sampling, tokenizer)
    return Rollout(ids, _logprobs(output.logprobs, ids), text, _finish_reason(output), policy_version)


def _finish_reason(output: Any) -> FinishReason:
    if output.finish_reason == "stop":
        return "stop"
    if output.finish_reason == "length":
        return "length"
    raise DapoError(
        f"vLLM: a rollout was given up after {len(output.token_ids)} tokens: finish reason {output.finish_reason!r}"
    )


def hearing(index: int, seed: int, on_tokens: OnTokens) -> Callable[[Any], None]:
    """What takes the growing `RequestOutput`s of one response and tells `on_tokens` of the tokens that are new."""
    told = 0

    def hear(output: Any) -> None:
        nonlocal told
        completion = output.outputs[0]
        new = list(completion.token_ids[told:])
        told += len(new)
        on_tokens(index, seed, new, _finish_reason(completion) if output.finished else None)

    return hear


def prompt_logprobs(output: Any, sequence: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Log-probs of tokens 1, 2, ... of `sequence` [T] in a finished `RequestOutput`, [T - 1].

    Raises:
        DapoError: the engine returned log-probs of other tokens.
    """
    return _logprobs(output.prompt_logprobs, sequence[1:])


def _logprobs(flat: Any, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The values of `FlatLogprobs` that hold one token per position, those of `ids` [T]."""
    values = np.array(flat.logprobs, dtype=np.float32)
    if not np.array_equal(np.array(flat.token_ids, dtype=np.int32), ids):
        raise DapoError(f"vLLM: log-probs of {len(values)} tokens do not belong to the {len(ids)} tokens asked for")
    if not np.isfinite(values).all():
        raise DapoError(f"vLLM: {np.count_nonzero(~np.isfinite(values))} of {len(values)} log-probs are not finite")
    return values

"""Whether an engine has the policy's weights: by log-probs of fixed sequences, and once by a canary.

Comparing after small updates is weak: a head that was never sent shows as little as bfloat16 rounding does. So the
first sync sends weights that were changed by several percent; what did not arrive shows then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dapo_cli.errors import DapoError
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import response_logprobs
from dapo_cli.recipe.schema import Recipe

Sequences = Sequence[npt.NDArray[np.int32]]
Logprobs = Sequence[npt.NDArray[np.float32]]

MOST_FLOAT32 = 1e-4
"""Largest difference of a log-prob; healthy is 5e-7 to 5e-5, a stale head 2e-3 and more."""
MEAN_BFLOAT16 = 1e-2
"""Mean difference. Not settled: SmolLM2-135M on a CPU has 0.03 to 0.08 with healthy weights (docs/status.md)."""

_PERTURBATION = 0.05
# Elements: what the wave takes beside a large embedding stays small.
_PERTURBED_AT_ONCE = 2**24
_PROBE_TOKENS = 48
_PROBE_PROMPTS = 3
# A canary that moves log-probs by less than this many thresholds proves nothing.
_LOUD = 10.0


class StaleWeights(DapoError):
    """An engine's log-probs are not the policy's."""


def probe_sequences(prompts: Sequences, vocabulary: int) -> list[npt.NDArray[np.int32]]:
    """The first tokens of some prompts, and a sequence of fixed pseudo-random tokens; at most 48 tokens each."""
    heads = [np.asarray(prompt[:_PROBE_TOKENS], dtype=np.int32) for prompt in prompts[:_PROBE_PROMPTS]]
    longest = max((len(head) for head in heads), default=_PROBE_TOKENS)
    random = np.random.default_rng(0).integers(0, vocabulary, max(longest, 2)).astype(np.int32)
    return [head for head in heads if len(head) > 1] + [random]


@torch.no_grad()
def policy_logprobs(policy: Any, sequences: Sequences, recipe: Recipe) -> list[npt.NDArray[np.float32]]:
    """The policy's log-probs of tokens 1, 2, ... of each sequence at temperature 1; a collective when it is sharded."""
    at_one = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"temperature": 1.0})})
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    count = len(sequences)
    pack = Batch(
        token_ids=np.concatenate(list(sequences)),
        prompt_lengths=np.ones(count, np.int32),
        response_lengths=lengths - 1,
        groups=np.arange(count, dtype=np.int32),
        advantages=np.zeros(count, np.float32),
        in_loss=np.zeros(count, np.bool_),
        rollout_logprobs=np.zeros(int((lengths - 1).sum()), np.float32),
    )
    values = response_logprobs(policy, pack, at_one)[0].cpu().numpy()
    return np.split(values, np.cumsum(lengths - 1)[:-1])


def compare(policy: Logprobs, engine: Logprobs, dtype: str, what: str) -> dict[str, float]:
    """`sync/probe_mean` and `sync/probe_max`, the absolute differences of log-probs.

    Raises:
        StaleWeights: they are more than rounding in `dtype` explains; `what` says after which sync.
    """
    difference = np.abs(np.concatenate(list(policy)).astype(np.float64) - np.concatenate(list(engine)))
    mean, most = float(difference.mean()), float(difference.max())
    measured, limit, name = (most, MOST_FLOAT32, "largest") if dtype == "float32" else (mean, MEAN_BFLOAT16, "mean")
    if not measured <= limit:
        raise StaleWeights(
            f"{what}: the engine's weights are not the policy's: log-probs of fixed sequences differ by {mean:.3g} in "
            f"the mean and {most:.3g} at most; in {dtype} the {name} difference may be {limit:g}",
            hint="nothing was trained on wrong samples; if this model's kernels simply differ more, report it with "
            "both numbers",
        )
    return {"sync/probe_mean": mean, "sync/probe_max": most}


@contextmanager
def perturbed(policy: Any) -> Iterator[None]:
    """Change every parameter by about 5% in place, and restore it bit for bit afterwards; shards each on their own.

    Takes a copy of this rank's parameters in host memory meanwhile: a GPU has an engine beside the policy. A tensor of
    zeros, such as a new LoRA adapter's, gets small numbers.
    """
    local = [_local(parameter) for parameter in policy.parameters()]
    saved = [tensor.to("cpu", copy=True) for tensor in local]
    try:
        with torch.no_grad():
            for tensor in local:
                _perturb(tensor)
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(local, saved, strict=True):
                tensor.copy_(old)


def _perturb(tensor: torch.Tensor) -> None:
    """Multiply the rows by a wave around 1, or where all are zero add it around 0; some rows at a time."""
    zero = not tensor.any()
    rows_at_once = max(1, _PERTURBED_AT_ONCE // max(1, math.prod(tensor.shape[1:])))
    whole = tensor if tensor.ndim else tensor[None]
    for rows in torch.split(whole, rows_at_once):
        wave = _PERTURBATION * torch.cos(torch.arange(rows.numel(), device=rows.device)).reshape(rows.shape)
        if zero:
            rows.add_(wave)
        else:
            rows.mul_(1 + wave)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that this process holds, sharing its memory."""
    to_local = getattr(parameter, "to_local", None)
    tensor: torch.Tensor = to_local() if to_local is not None else parameter
    return tensor.detach()


def check_canary(before: Logprobs, canary: Logprobs, dtype: str) -> float:
    """How far the perturbation moved the policy's own log-probs, in the mean.

    Raises:
        StaleWeights: too little for a missing tensor to show.
    """
    moved = float(np.abs(np.concatenate(list(before)) - np.concatenate(list(canary))).mean())
    limit = MOST_FLOAT32 if dtype == "float32" else MEAN_BFLOAT16
    if not moved > _LOUD * limit:
        raise StaleWeights(f"canary: changing all weights by 5% moved log-probs by {moved:.3g} only: it proves nothing")
    return moved


def prove(
    perturbation: Callable[[], Any],
    send: Callable[[], None],
    policy: Callable[[], Logprobs],
    engines: Callable[[], Sequence[Logprobs]],
    dtype: str,
) -> float:
    """The canary: send perturbed weights and see every engine follow; `perturbation` returns a context manager.

    The engines hold the perturbed weights afterwards: send the true ones next. Returns how far log-probs moved.

    Raises:
        StaleWeights: an engine's log-probs are not those of the perturbed policy: some tensor does not arrive.
    """
    before = policy()
    with perturbation():
        send()
        changed = policy()
        found = engines()
    moved = check_canary(before, changed, dtype)
    for number, engine in enumerate(found):
        compare(changed, engine, dtype, f"canary sync, engine {number}")
    return moved

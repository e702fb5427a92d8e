"""Whether an engine computes as the policy does: log-probs of fixed sequences, and once a canary.

That every weight arrives is counted (`arrivals`); log-probs show what counting does not: weights in the wrong place, an
old copy that is computed with. After small updates they show little, so the first sync sends weights that were changed
by several percent. In bfloat16 rounding alone moves log-probs, by an amount that depends on the model; so does that
change, and how far it moves them is the measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dapo_cli.backend.arrivals import StaleWeights
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import response_logprobs
from dapo_cli.recipe.schema import Recipe

Sequences = Sequence[npt.NDArray[np.int32]]
Logprobs = Sequence[npt.NDArray[np.float32]]

MOST_FLOAT32 = 1e-4
"""Largest difference of a log-prob; healthy is 5e-7 to 5e-5, a stale head 2e-3 and more."""
SHARE_BFLOAT16 = 1 / 2
"""Largest mean difference, as a share of how far the canary moved log-probs: healthy is 0.05 to 0.22, old weights 1."""

_PERTURBATION = 0.05
# Elements: what the wave takes beside a large embedding stays small.
_PERTURBED_AT_ONCE = 2**24
_SEQUENCE_TOKENS = 48
_PROBE_TOKENS = 144
# A canary that moves log-probs by less than this in the mean proves nothing.
_LEAST_MOVED = {"float32": 10 * MOST_FLOAT32, "bfloat16": 0.03}


def probe_sequences(prompts: Sequences, vocabulary: int) -> list[npt.NDArray[np.int32]]:
    """The first 48 tokens of prompts that begin differently, 144 tokens in all or a few more.

    Without a prompt it is 48 fixed pseudo-random tokens: in bfloat16 those differ several times as much as text does.
    """
    heads: dict[bytes, npt.NDArray[np.int32]] = {}
    for prompt in prompts:
        head = np.asarray(prompt[:_SEQUENCE_TOKENS], dtype=np.int32)
        if len(head) > 1:
            heads[head.tobytes()] = head
        if sum(map(len, heads.values())) >= _PROBE_TOKENS:
            break
    random = np.random.default_rng(0).integers(0, vocabulary, _SEQUENCE_TOKENS).astype(np.int32)
    return list(heads.values()) or [random]


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


def largest_allowed(dtype: str, moved: float) -> float:
    """The limit of `compare` for an engine that followed a canary which moved log-probs by `moved` in the mean.

    >>> largest_allowed("float32", 0.75), largest_allowed("bfloat16", 0.75)
    (0.0001, 0.375)
    """
    return MOST_FLOAT32 if dtype == "float32" else moved * SHARE_BFLOAT16


def compare(policy: Logprobs, engine: Logprobs, dtype: str, limit: float, what: str) -> dict[str, float]:
    """`sync/probe_mean` and `sync/probe_max`, the absolute differences of log-probs.

    Raises:
        StaleWeights: the largest difference in float32, or the mean in bfloat16, is above `limit`; `what` says after
            which sync.
    """
    difference = np.abs(np.concatenate(list(policy)).astype(np.float64) - np.concatenate(list(engine)))
    mean, most = float(difference.mean()), float(difference.max())
    measured, name = (most, "largest") if dtype == "float32" else (mean, "mean")
    if not measured <= limit:
        raise StaleWeights(
            f"{what}: the engine's weights are not the policy's: log-probs of fixed sequences differ by {mean:.3g} in "
            f"the mean and {most:.3g} at most; in {dtype} the {name} difference may be {limit:.3g}",
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
        StaleWeights: too little for old weights to show.
    """
    moved = float(np.abs(np.concatenate(list(before)) - np.concatenate(list(canary))).mean())
    if not moved > _LEAST_MOVED[dtype]:
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
        StaleWeights: some weight does not arrive, or an engine's log-probs are not those of the perturbed policy.
    """
    before = policy()
    with perturbation():
        send()
        changed = policy()
        found = engines()
    moved = check_canary(before, changed, dtype)
    for number, engine in enumerate(found):
        compare(changed, engine, dtype, largest_allowed(dtype, moved), f"canary sync, engine {number}")
    return moved

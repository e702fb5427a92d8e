"""One optimizer update on one minibatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo_cli.algorithm.policy_loss import policy_loss
from dapo_cli.policy.batch import Batch, dummy_pack
from dapo_cli.policy.forward import compute_device, packs, response_logprobs
from dapo_cli.policy.partition import Share
from dapo_cli.recipe.schema import Recipe, Train


def make_optimizer(model: torch.nn.Module, train: Train) -> torch.optim.AdamW:
    """AdamW over every trained parameter, weight decay included on all of them as in the public run."""
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        eps=train.adam_epsilon,
        weight_decay=train.weight_decay,
        foreach=True,
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], train: Train) -> None:
    """Load moments and step counts; betas, epsilon and weight decay stay the recipe's: a fork may change them."""
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group["betas"] = (train.adam_beta1, train.adam_beta2)
        group["eps"] = train.adam_epsilon
        group["weight_decay"] = train.weight_decay


def accumulate_gradients(model: torch.nn.Module, share: Share, recipe: Recipe) -> dict[str, float]:
    """Add the gradient of a share's loss to the parameters; returns loss, entropy, clip fractions, KL, and the mean and
    largest probability of the tokens clipped high, where there are any.

    The loss is the sum over rollouts of weight times the sum over tokens of the clipped loss, so any split into
    micro-batches or over ranks gives the same gradient. Metrics other than the loss are means over the tokens in the
    loss. With several ranks each is of the whole minibatch and the same on every rank.
    """
    device = compute_device(model)
    totals = torch.zeros(7, dtype=torch.float64, device=device)
    highest = torch.zeros(1, dtype=torch.float64, device=device)
    first, done = 0, 0
    for pack in packs(share.rows, recipe.train.tokens_per_microbatch):
        last = first + len(pack)
        sums, largest = _backward(model, pack, share.weights[first:last], recipe)
        totals += sums
        highest = torch.maximum(highest, largest)
        first, done = last, done + 1
    for _ in range(share.num_microbatches - done):
        _backward(model, dummy_pack(), np.zeros(1), recipe)
    if share.ranks > 1:
        torch.distributed.all_reduce(totals)
        torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX)
    *values, clipped_probability = totals.tolist()
    names = ("entropy", "clip_fraction_low", "clip_fraction_high", "clip_fraction_dual", "kl_old_new")
    means = {f"update/{name}": value / share.num_loss_tokens for name, value in zip(names, values[1:], strict=True)}
    metrics = {"loss/policy": values[0], **means}
    if (clipped_high := values[1 + names.index("clip_fraction_high")]) > 0:
        metrics["update/clipped_high_probability_mean"] = clipped_probability / clipped_high
        metrics["update/clipped_high_probability_max"] = float(highest)
    return metrics


def _backward(
    model: torch.nn.Module, pack: Batch, weights: npt.NDArray[np.float64], recipe: Recipe
) -> tuple[Tensor, Tensor]:
    loss, sums, highest = _pack_loss(model, pack, weights, recipe)
    loss.backward()  # type: ignore[no-untyped-call]
    return sums, highest


def _pack_loss(
    model: torch.nn.Module, pack: Batch, weights: npt.NDArray[np.float64], recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor]:
    """The pack's share of the loss; [loss, entropy, clipped low, high, dual, old - new, probability of those clipped
    high] summed, [7] float64; and the largest probability of a token clipped high, [1] float64, 0 without one."""
    if pack.old_logprobs is None:
        raise ValueError("an update needs old_logprobs: call Batch.with_old_logprobs first")
    train = recipe.train
    logprobs, entropy = response_logprobs(model, pack, recipe)
    device = logprobs.device

    def per_token(per_rollout: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.repeat(per_rollout, pack.response_lengths).astype(np.float32)).to(device)

    old_logprobs = torch.tensor(pack.old_logprobs, device=device)  # arrays from another process are read-only
    tokens = policy_loss(
        logprobs,
        old_logprobs,
        per_token(pack.advantages),
        train.clip_ratio_low,
        train.clip_ratio_high,
        train.dual_clip_ratio,
    )
    loss = (tokens.loss * per_token(weights)).sum()
    in_loss = per_token(pack.in_loss)
    with torch.no_grad():
        clipped_probability = logprobs.exp() * tokens.clipped_high * in_loss
        columns = (
            entropy,
            tokens.clipped_low.float(),
            tokens.clipped_high.float(),
            tokens.clipped_dual.float(),
            old_logprobs - logprobs,
            clipped_probability,
        )
        sums = torch.stack([loss.double(), *((column * in_loss).double().sum() for column in columns)])
        highest = clipped_probability.double().amax().reshape(1) if len(logprobs) else sums.new_zeros(1)
    return loss, sums, highest


def update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, share: Share, learning_rate: float, recipe: Recipe
) -> dict[str, float]:
    """One optimizer step on a minibatch, [metrics of docs/metrics.md under loss/ and update/].

    A non-finite loss or gradient leaves weights and optimizer as they were and counts in `update/skipped_count`;
    norm and loss are of the whole minibatch, so all ranks decide alike.
    """
    metrics = accumulate_gradients(model, share, recipe)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.train.max_grad_norm, foreach=True)
    grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    finite = bool(np.isfinite(grad_norm)) and bool(np.isfinite(metrics["loss/policy"]))
    if finite:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {
        **metrics,
        "update/grad_norm": grad_norm,
        "update/learning_rate": learning_rate,
        "update/skipped_count": float(not finite),
    }

"""What the tests of FSDP2 run on several ranks over gloo: one start of the processes answers many questions."""

from __future__ import annotations

import dataclasses
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from tiny import fixed_batch, tiny_recipe
from torch.distributed.device_mesh import DeviceMesh

from dapo_cli.policy import fsdp, sharded_checkpoint
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import share_logprobs
from dapo_cli.policy.partition import shares
from dapo_cli.policy.sharded_load import load_sharded_policy
from dapo_cli.policy.update import accumulate_gradients, make_optimizer, update
from dapo_cli.policy.weights import policy_weights, whole
from dapo_cli.recipe.schema import Recipe

DENOMINATORS = ("minibatch", "group", "sequence", "microbatch")
LORA = {"rank": 2, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}
CPU = torch.device("cpu")
_PRELOADED = [
    "dapo_cli.policy.sharded_load",
    "dapo_cli.policy.update",
    "torch.distributed.checkpoint",
    "transformers.models.llama.modeling_llama",
    "peft",
]


def recipe_of(denominator: str = "minibatch", model: dict[str, Any] | None = None, **backend: Any) -> Recipe:
    """Packs of 16 tokens, so that ranks have unequal numbers of them; every gradient is clipped."""
    emulated = {"ranks": 2, "tokens_per_microbatch": 40} if denominator == "microbatch" else None
    train = {"tokens_per_microbatch": 16, "loss_denominator": denominator, "emulated_partition": emulated}
    train |= {"max_grad_norm": 0.1}
    return tiny_recipe(train=train, model={"path": "toy"} | (model or {}), backend={"kind": "ray"} | backend)


def batch_of(size: str) -> Batch:
    """Rollouts of ragged length; `few` leaves ranks without any."""
    return fixed_batch(1, 2) if size == "few" else fixed_batch(3, 3)


def start(num_ranks: int, check: Any, folder: Path, *arguments: Any) -> Any:
    """Run `check(rank, num_ranks, folder, *arguments)` on ranks of their own; what rank 0 returned."""
    port = _free_port()
    # Processes are forked from one that has imported what all of them need, which takes most of a fresh one's start.
    multiprocessing.set_forkserver_preload(_PRELOADED)
    torch.multiprocessing.start_processes(
        _run, (num_ranks, port, check, folder, arguments), nprocs=num_ranks, start_method="forkserver"
    )
    return torch.load(folder / "result.pt", weights_only=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(rank: int, num_ranks: int, port: int, check: Any, folder: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    fsdp.init_ranks(rank, num_ranks, f"tcp://127.0.0.1:{port}", "cpu", 60)
    result = check(rank, num_ranks, folder, *arguments)
    if rank == 0:
        torch.save(result, folder / "result.pt")
    fsdp.close_ranks()


@contextmanager
def one_rank() -> Iterator[DeviceMesh]:
    """The mesh of a process group of this process alone."""
    fsdp.init_ranks(0, 1, f"tcp://127.0.0.1:{_free_port()}", "cpu", 60)
    try:
        yield fsdp.make_mesh(1, None, "cpu")
    finally:
        fsdp.close_ranks()


def load(recipe: Recipe, num_ranks: int, folder: Path) -> Any:
    """The policy in `folder`/model, sharded as the recipe says."""
    mesh = fsdp.make_mesh(num_ranks, recipe.backend.ranks_per_shard_group, "cpu")
    return load_sharded_policy(folder / "model", recipe, mesh, CPU)


def gradient(policy: Any) -> torch.Tensor:
    """All gradients, whole, as one vector."""
    grads = [whole(each.grad).flatten() for each in policy.parameters() if each.grad is not None]
    policy.zero_grad(set_to_none=True)
    return torch.cat(grads).float()


def weights(policy: Any) -> dict[str, torch.Tensor]:
    """Copies of all weights, whole."""
    return {name: tensor.clone() for name, tensor in policy_weights(policy, torch.float32)}


def read_policy_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The trained weights of a sharded checkpoint by name, whole."""
    return {name: read() for name, (_, read) in sharded_checkpoint.open_policy_tensors(folder).items()}


def trained(policy: Any) -> dict[str, torch.Tensor]:
    """Copies of the trained parameters, whole."""
    return {name: whole(each.detach()).clone() for name, each in policy.named_parameters() if each.requires_grad}


def state(policy: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Copies of all that a checkpoint holds, whole."""
    found = sharded_checkpoint.state_of(policy, optimizer)
    return {key: whole(tensor).clone() for key, tensor in found.items()}


def gradients_of_everything(rank: int, num_ranks: int, folder: Path) -> dict[Any, Any]:
    """Gradients and metrics for every denominator, and for fewer rollouts than ranks."""
    found: dict[Any, Any] = {}
    policy = load(recipe_of(), num_ranks, folder)
    found["weights"] = weights(policy)
    for size in ("many", "few"):
        for denominator in DENOMINATORS:
            recipe = recipe_of(denominator)
            share = shares(batch_of(size), num_ranks, recipe.train)[rank]
            found[size, denominator] = accumulate_gradients(policy, share, recipe), gradient(policy)
    share = shares(batch_of("many"), num_ranks, recipe_of().train)[rank]
    found["logprobs"] = share_logprobs(policy, share, recipe_of())
    return found


def variants(rank: int, num_ranks: int, folder: Path) -> dict[str, Any]:
    """Gradient and master precision of other ways to shard and compute."""
    found: dict[str, Any] = {}
    settings: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "hybrid": ({}, {"ranks_per_shard_group": 2}),
        "offload": ({}, {"offload": ["parameters", "optimizer"]}),
        "recompute": ({"activation_checkpointing": True}, {}),
        "bfloat16": ({"dtype": "bfloat16"}, {}),
        "lora": ({"lora": LORA}, {}),
        "lora bfloat16": ({"lora": LORA, "dtype": "bfloat16"}, {}),
    }
    for name, (model, backend) in settings.items():
        recipe = recipe_of(model=model, policy_ranks=num_ranks, **backend)
        policy = load(recipe, num_ranks, folder)
        if "lora" in name:
            give_adapters_an_effect(policy)
        share = shares(batch_of("many"), num_ranks, recipe.train)[rank]
        metrics, grads = accumulate_gradients(policy, share, recipe), gradient(policy)
        optimizer = make_optimizer(policy, recipe.train)
        update(policy, optimizer, share, 1e-2, recipe)
        moments = [each["exp_avg"] for each in optimizer.state.values()]
        after = weights(policy)
        saved = trained(policy)
        finish = sharded_checkpoint.start_saving(folder / name, policy, optimizer)
        update(policy, optimizer, share, 1e-2, recipe)
        finish()
        found[name] = {
            "metrics": metrics,
            "gradient": grads,
            "weights": after,
            "saved": saved,
            "trained": {str(each.dtype) for each in policy.parameters() if each.requires_grad},
            "frozen": {str(each.dtype) for each in policy.parameters() if not each.requires_grad},
            "moments": {str(each.dtype) for each in moments},
            "moment numbers": sum(each.numel() for each in moments),
        }
    found["bfloat16 of one microbatch"] = bfloat16_summed_over_ranks(rank, num_ranks, folder)
    return found


def bfloat16_summed_over_ranks(rank: int, num_ranks: int, folder: Path) -> torch.Tensor:
    """The gradient of one micro-batch on every rank, computed in bfloat16."""
    recipe = recipe_of(model={"dtype": "bfloat16"})
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"tokens_per_microbatch": 64})})
    share = shares(batch_of("many"), num_ranks, recipe.train)[rank]
    assert share.num_microbatches == 1
    policy = load(recipe, num_ranks, folder)
    accumulate_gradients(policy, share, recipe)
    return gradient(policy)


@torch.no_grad()
def give_adapters_an_effect(policy: Any) -> None:
    """Set every B, which starts at 0, to a value."""
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            parameter.add_(0.1)


def updates_and_checkpoints(rank: int, num_ranks: int, folder: Path, saved: Path | None) -> dict[str, Any]:
    """Three updates, or a checkpoint of other ranks, then one update more; saves both ways."""
    recipe = recipe_of()
    policy = load(recipe, num_ranks, folder)
    optimizer = make_optimizer(policy, recipe.train)
    share = shares(batch_of("many"), num_ranks, recipe.train)[rank]
    if saved is not None:
        sharded_checkpoint.load_sharded(saved, policy, optimizer, recipe.train)
    else:
        for _ in range(3):
            update(policy, optimizer, share, 1e-2, recipe)
    before = state(policy, optimizer)
    finish = sharded_checkpoint.start_saving(folder / f"async-{num_ranks}", policy, optimizer)
    sharded_checkpoint.save_sharded(folder / f"sync-{num_ranks}", policy, optimizer)
    poisoned = dataclasses.replace(share, weights=np.full_like(share.weights, np.nan) if rank == 0 else share.weights)
    skipped = update(policy, optimizer, poisoned, 1e-2, recipe)
    unchanged = all(torch.equal(before[key], tensor) for key, tensor in state(policy, optimizer).items())
    metrics = update(policy, optimizer, share, 1e-2, recipe)
    finish()
    return {"before": before, "next": metrics, "skipped": skipped, "unchanged": unchanged}

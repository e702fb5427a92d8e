"""FSDP2: the policy sharded over ranks, layer by layer, with gradients that sum.

Everything works over gloo on CPUs and NCCL on GPUs, with any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from dapo_cli.errors import UsageError
from dapo_cli.policy.forward import make_forward_method
from dapo_cli.recipe.schema import Recipe

_background: list[distributed.ProcessGroup] = []


def init_ranks(rank: int, num_ranks: int, address: str, device_type: str, timeout_seconds: float) -> None:
    """Join the process group that meets at `address` (tcp://host:port).

    On GPUs a gloo group stands beside NCCL: offloaded tensors and checkpoints in the background reduce on the CPU.
    """
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo",
        init_method=address,
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=timeout_seconds),
    )


def close_ranks() -> None:
    """Leave the process group; a process that does not may abort at its exit."""
    _background.clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def background_group() -> distributed.ProcessGroup | None:
    """The gloo group of saves in the background, whose collectives must not mix with those of training.

    Made by the first call, which all ranks make at once; None where there are no ranks.
    """
    if not distributed.is_initialized():
        return None
    if not _background:
        _background.append(distributed.new_group(backend="gloo"))
    return _background[0]


def make_mesh(num_ranks: int, ranks_per_shard_group: int | None, device_type: str) -> DeviceMesh:
    """All ranks as one shard group, or groups of `ranks_per_shard_group` that replicate one another.

    Raises:
        ValueError: the groups do not divide the ranks.
    """
    if ranks_per_shard_group is None or ranks_per_shard_group == num_ranks:
        return init_device_mesh(device_type, (num_ranks,), mesh_dim_names=("shard",))
    if num_ranks % ranks_per_shard_group:
        raise ValueError(f"{num_ranks} ranks do not divide into shard groups of {ranks_per_shard_group}")
    shape = (num_ranks // ranks_per_shard_group, ranks_per_shard_group)
    return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def shard_policy(policy: Any, recipe: Recipe, mesh: DeviceMesh) -> None:
    """Shard `policy` in place: one group per decoder layer, the rest in the root.

    Parameters, gradients and optimizer state stay in the precision the parameters have; the forward and backward run
    in `model.dtype` and gradients are reduced in float32, summed over ranks.

    Raises:
        UsageError: the architecture has no list of decoder layers.
    """
    compute = getattr(torch, recipe.model.dtype)
    offload = offload_policy(recipe, mesh.device_type)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in decoder_layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=offload)
    whole = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, output_dtype=torch.float32)
    # By default the root stays gathered after a forward without backward, and would hide a later change of its shards.
    fully_shard(policy, mesh=mesh, mp_policy=whole, offload_policy=offload, reshard_after_forward=True)
    sum_gradients(policy)
    make_forward_method(policy)


def decoder_layers(policy: Any) -> Iterable[torch.nn.Module]:
    """The layers of the decoder, whatever the architecture calls their list.

    Raises:
        UsageError: there is no such list.
    """
    count = policy.config.get_text_config().num_hidden_layers
    for child in policy.get_decoder().children():
        if isinstance(child, torch.nn.ModuleList) and len(child) == count:
            return child
    kind = type(policy).__name__
    raise UsageError(f"model.path: {kind} has no list of {count} decoder layers, by which it could be sharded")


def offload_policy(recipe: Recipe, device_type: str) -> OffloadPolicy:
    """Host memory for parameters where the recipe asks for it; pinned only where there is a GPU to copy to."""
    if "parameters" in recipe.backend.offload:
        return CPUOffloadPolicy(pin_memory=device_type == "cuda")
    return OffloadPolicy()


def sum_gradients(policy: torch.nn.Module) -> None:
    """Sum gradients over ranks instead of averaging them: the loss weights carry the denominator.

    On every FSDP module: set on the root alone, layers would still divide. Without the forced sum, gloo refuses.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device | str) -> None:
    """Move the moments to `device`, in place; step counts stay where they are."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step":
                state[name] = value.to(device)

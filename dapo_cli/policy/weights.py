"""The policy's weights as an engine wants them: by their names in a checkpoint, whole, in the engine's precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dapo_cli.policy.forward import compute_device

_LORA_BASE = ".base_layer."
_LORA_PARTS = (".lora_A.", ".lora_B.")


class TensorShape(NamedTuple):
    """What is known of a weight without gathering it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def base_name(name: str) -> str:
    """The name of a tensor in the checkpoint of the base model.

    >>> base_name("model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    return name.replace(_LORA_BASE, ".")


def is_adapter(name: str) -> bool:
    """Whether a tensor belongs to a LoRA adapter.

    >>> is_adapter("model.layers.0.self_attn.q_proj.lora_A.default.weight")
    True
    """
    return any(part in name for part in _LORA_PARTS)


def policy_weights(policy: Any, dtype: torch.dtype, *, merged: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Every weight and persistent buffer, one whole tensor at a time, in the order of the model's layers.

    The output head is yielded also when it is tied: an engine that was not sent it may keep an old one without an
    error. Sharded weights are cast before they are gathered, so that half as many bytes travel, and offloaded ones are
    brought to where the policy computes, because NCCL cannot gather in host memory; gathering is a collective, all
    ranks iterate together. With `merged`, LoRA adapters are added to the weights they belong to.
    """
    device = compute_device(policy)
    modules = dict(policy.named_modules())
    for name, tensor in _tensors(policy):
        value = tensor.detach()
        parent = modules.get(name.rpartition(_LORA_BASE)[0]) if _LORA_BASE in name else None
        if merged and parent is not None and name.endswith(".weight"):
            from dapo_cli.policy.lora import merged_weight

            value = merged_weight(parent)
        yield base_name(name), whole(value.to(device, dtype if value.is_floating_point() else value.dtype))


def weight_shapes(policy: Any, dtype: torch.dtype) -> list[TensorShape]:
    """What `policy_weights` yields, element for element, without gathering anything."""
    return [
        TensorShape(base_name(name), dtype if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))
        for name, tensor in _tensors(policy)
    ]


def _tensors(policy: Any) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in policy.state_dict(keep_vars=True).items():
        if not is_adapter(name):
            yield name, tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered, any other as it is."""
    gather = getattr(tensor, "full_tensor", None)
    gathered: Tensor = gather() if gather is not None else tensor
    return gathered

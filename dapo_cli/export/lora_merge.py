"""LoRA adapters added to the weights they stand beside, one weight at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export.lazy_tensors import LazyTensor
from dapo_cli.export.safetensors_files import read_lazily
from dapo_cli.recipe.schema import Lora

ADAPTER = re.compile(r"(?P<layer>.+)\.lora_(?P<half>[AB])\.default\.weight")
"""The name of one half of an adapter."""
FOREIGN = re.compile(r"lora_|modules_to_save|original_module")
"""Part of the name of whatever an adapter brings."""


def merged(base_folder: Path, trained: Mapping[str, LazyTensor], lora: Lora, dtype: str) -> dict[str, LazyTensor]:
    """The weights in `base_folder`, rounded to `dtype` as training computed with them, and the adapters added, float32.

    Raises:
        DapoError: the base model's files cannot be read.
        UsageError: a half of an adapter is missing, or of another shape than its weight.
        VerificationError: an adapter belongs to no weight of the base model.
    """
    files = sorted(base_folder.glob("*.safetensors"))
    whole = {name: _rounded(tensor, getattr(torch, dtype)) for name, tensor in read_lazily(files).items()}
    for layer, half in adapter_halves(trained, str(base_folder)).items():
        name = f"{layer}.weight"
        if name not in whole:
            raise VerificationError(f"{base_folder}: no {name}, which the adapters of this run were trained beside")
        whole[name] = with_adapter(whole[name], half, lora.alpha / lora.rank, name)
    return whole


def _rounded(tensor: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    return LazyTensor(tensor.shape, torch.float32, partial(_round, tensor, dtype))


def _round(tensor: LazyTensor, dtype: torch.dtype) -> Tensor:
    return tensor.read().to(dtype).float()


def adapter_halves(tensors: Mapping[str, LazyTensor], where: str) -> dict[str, dict[str, LazyTensor]]:
    """Both halves, A and B, of each layer's adapter; other tensors are passed over.

    Raises:
        UsageError: a half is missing, or an adapter of another kind.
    """
    halves: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in tensors.items():
        match = ADAPTER.fullmatch(name)
        if match:
            halves.setdefault(match["layer"], {})[match["half"]] = tensor
        elif FOREIGN.search(name):
            raise UsageError(f"{where}: {name}: an adapter of a kind that is not merged")
    incomplete = sorted(layer for layer, half in halves.items() if half.keys() != {"A", "B"})
    if incomplete:
        raise UsageError(f"{where}: only one half of the adapter of {incomplete[0]} is stored")
    return halves


def with_adapter(base: LazyTensor, half: Mapping[str, LazyTensor], scale: float, where: str) -> LazyTensor:
    """W + scale * B A in float32, of the tensors as they are when it is read.

    Raises:
        UsageError: the shapes do not belong together.
    """
    up, down = half["B"], half["A"]
    if (up.shape[0], down.shape[1], up.shape[1]) != (*base.shape, down.shape[0]):
        raise UsageError(
            f"{where}: adapter of shapes {up.shape} and {down.shape} beside a weight of shape {base.shape}"
        )

    def read() -> Tensor:
        merged: Tensor = base.read().float() + up.read().float() @ down.read().float() * scale
        return merged

    return LazyTensor(base.shape, torch.float32, read)

"""LoRA: low-rank adapters beside frozen weights, by the peft library, injected so that the model keeps its class."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapo_cli.errors import UsageError
from dapo_cli.policy.weights import is_adapter, whole
from dapo_cli.recipe.schema import Lora
from dapo_cli.rollout.seeds import rollout_seed

_ADAPTER = "default"
_PEFT_PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def add_adapters(policy: Any, lora: Lora, seed: int, dtype: str) -> None:
    """Give every target layer an adapter in float32, and freeze all other weights, cast to `dtype`.

    An adapter starts without effect. On the meta device call `initialise_adapters` once there is memory.

    Raises:
        UsageError: peft is not installed, a target names no linear layer, or the output head where it is tied.
    """
    try:
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise UsageError("model.lora: needs the Python package peft", hint="pip install peft") from error
    _check_targets(policy, lora)
    inject_adapter_in_model(_config(lora), policy, adapter_name=_ADAPTER)
    for name, parameter in policy.named_parameters():
        adapter = is_adapter(name)
        parameter.requires_grad_(adapter)
        parameter.data = parameter.data.to(torch.float32 if adapter else getattr(torch, dtype))
    if not next(policy.parameters()).is_meta:
        initialise_adapters(policy, seed)


def _config(lora: Lora, base_model: str | None = None, revision: str | None = None) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_model,
        revision=revision,
    )


def _check_targets(policy: Any, lora: Lora) -> None:
    linear = {name.rpartition(".")[2] for name, module in policy.named_modules() if isinstance(module, torch.nn.Linear)}
    unknown = sorted(set(lora.targets) - linear)
    if unknown:
        raise UsageError(
            f"model.lora.targets: {', '.join(unknown)}: no such linear layer",
            hint=f"there are {', '.join(sorted(linear))}",
        )
    output = policy.get_output_embeddings()
    head = next(name for name, module in policy.named_modules() if module is output).rpartition(".")[2]
    if policy.config.get_text_config().tie_word_embeddings and head in lora.targets:
        raise UsageError(
            f"model.lora.targets: {head}: the head is tied to the embeddings, which a merged adapter would part",
            hint=f"remove {head} from the targets",
        )


@torch.no_grad()
def initialise_adapters(policy: Any, seed: int) -> None:
    """Kaiming-uniform A and zero B, as peft does; A depends on `seed` and the layer's name, not on sharding."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            parameter.zero_()
        elif ".lora_A." in name:
            generator = torch.Generator().manual_seed(rollout_seed("lora", seed, name) >> 1)
            value = torch.empty(parameter.shape)
            torch.nn.init.kaiming_uniform_(value, a=math.sqrt(5), generator=generator)
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                # Every rank has made the whole value: each takes its own part, and nothing is sent.
                value = distribute_tensor(value.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
            parameter.copy_(value)


def merged_weight(layer: Any) -> Tensor:
    """W + alpha / rank * B A of a layer with an adapter, in float32; sharded if W is."""
    scale = layer.scaling[_ADAPTER]
    down, up = layer.lora_A[_ADAPTER].weight.detach(), layer.lora_B[_ADAPTER].weight.detach()
    weight: Tensor = layer.base_layer.weight.detach().float()
    # B is sharded by rows as W is: with the whole of A each rank adds to its own rows.
    merged: Tensor = weight + up.float() @ _replicated(down).float() * scale
    return merged


def _replicated(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(tensor, DTensor):
        return tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
    return tensor


def merge_adapters(policy: Any) -> None:
    """Add every adapter to the weight it belongs to and remove it: a plain model in float32. For one process."""
    for _, layer in _adapted_layers(policy):
        layer.base_layer.weight = torch.nn.Parameter(merged_weight(layer), requires_grad=False)
    remove_adapters(policy)
    policy.float()


def remove_adapters(policy: Any) -> None:
    """Leave the model with the weights its adapters stood beside."""
    for name, layer in _adapted_layers(policy):
        policy.set_submodule(name, layer.base_layer)
    del policy.peft_config


def _adapted_layers(policy: Any) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in policy.named_modules() if hasattr(module, "lora_A")]


def adapter_state(policy: Any) -> dict[str, Tensor]:
    """All adapters, whole, on the CPU, by peft's names in a file; a collective when they are sharded."""
    return {
        _PEFT_PREFIX + name.replace(f".{_ADAPTER}.", "."): whole(parameter.detach()).cpu().contiguous()
        for name, parameter in policy.named_parameters()
        if is_adapter(name)
    }


def adapter_files(
    state: dict[str, Tensor], lora: Lora, base_model: str, revision: str | None = None
) -> dict[str, bytes]:
    """The two files of an adapter folder that peft and vLLM read, by name; `state` is what `adapter_state` gave."""
    from safetensors.torch import save

    config = _config(lora, base_model, revision).to_dict()
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    plain |= {"inference_mode": True}
    return {WEIGHTS: save(state), CONFIG: (json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n").encode()}


def save_adapter(policy: Any, lora: Lora, folder: Path, base_model: str) -> None:
    """Write the adapter folder that `PeftModel.from_pretrained(base, folder)` and vLLM's LoRARequest read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in adapter_files(adapter_state(policy), lora, base_model).items():
        (folder / name).write_bytes(content)


def trained_tensors(policy: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    return {name: parameter.detach() for name, parameter in policy.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def load_trained_tensors(policy: torch.nn.Module, state: dict[str, Tensor]) -> None:
    """Put back what `trained_tensors` gave.

    Raises:
        RuntimeError: names or shapes are not those of this policy.
    """
    wanted = trained_tensors(policy)
    different = sorted(wanted.keys() ^ state.keys())
    different += [name for name in wanted.keys() & state.keys() if wanted[name].shape != state[name].shape]
    if different:
        raise RuntimeError(f"other tensors are trained here: {', '.join(different[:5])}")
    for name, tensor in state.items():
        wanted[name].copy_(tensor)


def trainable_summary(policy: torch.nn.Module) -> str:
    """How many parameters are trained, and what AdamW's float32 state of them takes, in words."""
    total = sum(parameter.numel() for parameter in policy.parameters())
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    what = "all" if trained == total else f"{_short(trained)} of"
    return f"{what} {_short(total)} parameters trained, optimizer state {_short(8 * trained)}B"


def _short(number: float) -> str:
    """Three digits and a unit.

    >>> _short(1_234_567), _short(88_000), _short(512)
    ('1.23M', '88k', '512')
    """
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"

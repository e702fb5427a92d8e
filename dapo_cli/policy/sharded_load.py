"""Loading a policy straight into its shards: no rank ever holds a whole model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh

from dapo_cli.errors import UsageError
from dapo_cli.hub import download_model
from dapo_cli.policy import attention, fsdp
from dapo_cli.policy.model import first_line, from_folder, prepare_policy, probe_packing
from dapo_cli.policy.sharded_checkpoint import first_reason
from dapo_cli.recipe.schema import Recipe

_WANTED_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_INDEX = "model.safetensors.index.json"
# A probe of a wide layer takes gigabytes on every rank, most of them in what does not mix tokens.
_PROBE_WIDTH = 512


def local_model_folder(resolved: str, revision: str | None) -> Path:
    """A folder as it is, or the local copy of a hub model, downloaded where it is not there yet.

    Processes that share a file system wait for the one that downloads: huggingface_hub locks each file.

    Raises:
        UsageError: it cannot be had.
    """
    if Path(resolved).is_dir():
        return Path(resolved)
    return download_model(resolved, revision, _WANTED_FILES)


def load_sharded_policy(folder: Path, recipe: Recipe, mesh: DeviceMesh, device: torch.device) -> Any:
    """The policy of a Hugging Face folder, sharded over `mesh`, in float32 on `device`, with packed attention.

    A model in eval mode as `load_model` gives it, LoRA adapters included. Called on all ranks at once.

    Raises:
        UsageError: weights are missing, or the architecture cannot be trained packed.
    """
    policy = empty_policy(folder, recipe)
    probe_architecture(policy.config, recipe)
    fsdp.shard_policy(policy, recipe, mesh)
    offloaded = "parameters" in recipe.backend.offload
    policy.to_empty(device=torch.device("cpu") if offloaded else device)
    policy.compute_device = device
    policy.tie_weights()
    read_weights(policy, folder, recipe)
    rebuild_buffers(policy, device)
    if recipe.model.lora is not None:
        from dapo_cli.policy.lora import initialise_adapters

        initialise_adapters(policy, recipe.rollout.seed)
    return policy


def empty_policy(folder: Path, recipe: Recipe) -> Any:
    """The policy's modules without memory, on the meta device, in float32, with adapters where the recipe has them.

    Raises:
        UsageError: transformers cannot make it, or it cannot attend packed.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    attention.register()

    def make() -> Any:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            policy = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention.NAME)
        if (folder / "generation_config.json").is_file():
            policy.generation_config = GenerationConfig.from_pretrained(folder)
        return policy

    policy = from_folder(make, recipe.model.path)
    prepare_policy(policy, recipe.model)
    if recipe.model.lora is not None:
        from dapo_cli.policy.lora import add_adapters

        add_adapters(policy, recipe.model.lora, recipe.rollout.seed, recipe.model.dtype)
    return policy


def probe_architecture(config: Any, recipe: Recipe) -> None:
    """Check that this architecture attends packed, on a random model with one layer of each kind.

    Whether sequences leak is a matter of the architecture, not of the weights, which are sharded.

    Raises:
        DapoError: its packed forward differs from its own.
    """
    import copy

    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    kinds = list(dict.fromkeys(getattr(small, "layer_types", None) or ["full_attention"]))
    small.num_hidden_layers = len(kinds)
    if getattr(small, "layer_types", None):
        small.layer_types = kinds
    for name in ("vocab_size", "intermediate_size"):
        if isinstance(getattr(small, name, None), int):
            setattr(small, name, min(getattr(small, name), _PROBE_WIDTH))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(small, name, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
    prepare_policy(policy, recipe.model.model_copy(update={"activation_checkpointing": False}))
    probe_packing(policy, recipe.model.path)


def read_weights(policy: Any, folder: Path, recipe: Recipe) -> None:
    """Fill every parameter and persistent buffer from the .safetensors files, each rank its own part.

    Raises:
        UsageError: a file is missing or damaged, or does not hold a weight, or holds another one by its name.
    """
    where = f"model.path: {recipe.model.path}"
    _check_files(folder, where)
    reader = HuggingFaceStorageReader(str(folder))
    wanted = dict(_base_tensors(policy))
    _check_tensors(wanted, reader.read_metadata().state_dict_metadata, where)
    try:
        load(wanted, storage_reader=reader)
    except CheckpointException as error:
        raise UsageError(f"{where}: cannot be loaded: {first_reason(error)}") from error


def _check_files(folder: Path, where: str) -> None:
    """Refuse by name what is missing of the .safetensors files, or cannot be opened: a download cut short."""
    from safetensors import SafetensorError, safe_open

    files = {file.name: file for file in sorted(folder.glob("*.safetensors"))}
    if not files:
        raise UsageError(f"{where}: no .safetensors file in {folder}")
    try:
        for name in files:
            with safe_open(files[name], framework="pt"):
                pass
        name = _INDEX
        index = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        missing = sorted(set(index.get("weight_map", {}).values()) - files.keys())
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise UsageError(f"{where}: {folder / name}: cannot be read: {first_line(error)}") from error
    if missing:
        raise UsageError(f"{where}: {folder}: {missing[0]} is missing, which {_INDEX} names")


def _check_tensors(wanted: Mapping[str, torch.Tensor], stored: Mapping[str, Any], where: str) -> None:
    """Refuse what would be read wrongly or not at all: the reader casts any number to any other in silence."""
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        raise UsageError(f"{where}: these weights are not in the checkpoint: {', '.join(missing[:5])}")
    for name, tensor in wanted.items():
        shape, dtype = tuple(stored[name].size), stored[name].properties.dtype
        if shape != tuple(tensor.shape):
            raise UsageError(f"{where}: {name} is {shape} in the checkpoint, {tuple(tensor.shape)} by its config")
        if tensor.is_floating_point() and (not dtype.is_floating_point or dtype.itemsize < 2):
            raise UsageError(f"{where}: {name} is {dtype} in the checkpoint: quantised weights cannot be trained")


def _base_tensors(policy: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers by their names in the checkpoint; a tied head counts once, adapters not."""
    from dapo_cli.policy.weights import base_name, is_adapter

    seen: set[int] = set()
    for name, tensor in policy.state_dict(keep_vars=True).items():
        if not is_adapter(name) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield base_name(name), tensor.detach()


def rebuild_buffers(policy: Any, device: torch.device) -> None:
    """Compute the buffers that no checkpoint holds, such as rotary frequencies: on the meta device they had no value.

    Raises:
        UsageError: a module has such buffers and cannot compute them from the config.
    """
    for name, module in policy.named_modules():
        transient = [buffer for buffer in module._buffers if buffer in module._non_persistent_buffers_set]
        if not transient:
            continue
        try:
            fresh = type(module)(policy.config)
        except TypeError as error:
            raise UsageError(
                f"model.path: {type(policy).__name__}: {name} has buffers that cannot be rebuilt"
            ) from error
        for buffer in transient:
            module._buffers[buffer] = fresh._buffers[buffer].to(device)
        for attribute, value in vars(fresh).items():
            if isinstance(value, torch.Tensor):
                setattr(module, attribute, value.to(device))

"""Loading a policy straight into its shards: no rank ever holds a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh

from dapo_cli.errors import UsageError
from dapo_cli.policy import attention, fsdp
from dapo_cli.policy.model import first_line, prepare_policy, probe_packing
from dapo_cli.recipe.schema import Recipe

_WANTED_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]


def local_model_folder(resolved: str, revision: str | None) -> Path:
    """A folder as it is, or the local copy of a hub model, downloaded where it is not there yet.

    Processes that share a file system wait for the one that downloads: huggingface_hub locks each file.

    Raises:
        UsageError: it cannot be had.
    """
    if Path(resolved).is_dir():
        return Path(resolved)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(resolved, revision=revision, allow_patterns=_WANTED_FILES))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path: {resolved}: cannot be downloaded: {first_line(error)}",
            hint="HF_HOME names the cache, HF_TOKEN opens gated models; a local folder works as model.path too",
        ) from error


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
    """The policy's modules without memory, on the meta device, in float32, with adapters where the recipe has them."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    attention.register()
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention.NAME)
    if (folder / "generation_config.json").is_file():
        policy.generation_config = GenerationConfig.from_pretrained(folder)
    prepare_policy(policy, recipe.model)
    if recipe.model.lora is not None:
        from dapo_cli.policy.lora import add_adapters

        add_adapters(policy, recipe.model.lora, recipe.rollout.seed, recipe.model.dtype)
    return policy


def probe_architecture(config: Any, recipe: Recipe) -> None:
    """Check that this architecture attends packed, on a random model of one layer: sharded weights are not needed.

    Raises:
        DapoError: its packed forward differs from its own.
    """
    import copy

    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    small.vocab_size = min(config.vocab_size, 512)
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
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
        UsageError: some are not in the files, or there are no such files.
    """
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"model.path: {recipe.model.path}: no .safetensors file in {folder}")
    reader = HuggingFaceStorageReader(str(folder))
    try:
        stored = reader.read_metadata().state_dict_metadata
    except (OSError, ValueError) as error:
        raise UsageError(f"model.path: {recipe.model.path}: cannot be loaded: {first_line(error)}") from error
    wanted = dict(_base_tensors(policy))
    missing = sorted(set(wanted) - set(stored))
    if missing:
        names = ", ".join(missing[:5])
        raise UsageError(f"model.path: {recipe.model.path}: these weights are not in the checkpoint: {names}")
    load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)))


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

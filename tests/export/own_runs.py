"""Runs as training leaves them, made without training: `model/`, recipe, manifest, and one sealed checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from ranks import CPU, recipe_of
from safetensors.torch import save_file, save_model
from tiny import tiny_recipe

from dapo_cli.policy import fsdp
from dapo_cli.policy.lora import trained_tensors
from dapo_cli.policy.sharded_checkpoint import save_sharded
from dapo_cli.policy.sharded_load import load_sharded_policy
from dapo_cli.recipe.dump import to_yaml
from dapo_cli.run.base_model import model_identity
from dapo_cli.run.checkpoints import Keep, save_checkpoint
from dapo_cli.run.directory import RunDirectory

LORA = {"rank": 2, "alpha": 6.0, "targets": ["q_proj", "down_proj"]}
GENERATION_CONFIG = {"top_k": 20, "repetition_penalty": 1.1, "temperature": 0.6, "eos_token_id": [1, 2]}
"""transformers itself refuses to save this one: temperature without do_sample."""


def make_run(path: Path, base: Path, tokenizer: Any, **model: Any) -> RunDirectory:
    """A run that trains the model in the folder `base`."""
    recipe = tiny_recipe(model={"path": str(base)} | model)
    manifest = {
        "model": {"path": str(base), **model_identity(str(base), None)},
        "data": {"train": "ab" * 32},
        "contaminated": False,
    }
    run = RunDirectory.create(path, to_yaml(recipe), manifest)
    described = run.path / "model"
    described.mkdir(exist_ok=True)
    (described / "config.json").write_text((base / "config.json").read_text())
    (described / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG))
    tokenizer.save_pretrained(described)
    return run


def checkpoint_of(run: RunDirectory, policy: Any, step: int = 3) -> Path:
    """A checkpoint as one process saves it."""

    def write(folder: Path) -> None:
        trained = trained_tensors(policy)
        if len(trained) == len(list(policy.parameters())):
            save_model(policy, str(folder / "model.safetensors"))
        else:
            save_file(trained, folder / "model.safetensors")

    return save_checkpoint(run, step, write, {}, Keep("all")).path


def checkpoint_folder(run: RunDirectory, source: Path, only: tuple[str, ...] | None = None, step: int = 3) -> Path:
    """A checkpoint with the files in `source`, or only those of some names."""

    def write(folder: Path) -> None:
        for path in source.iterdir():
            if only is None or path.name in only:
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)

    return save_checkpoint(run, step, write, {}, Keep("all")).path


def give_effect(policy: Any) -> None:
    """Adapters that change what the model computes."""
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                numbers = torch.linspace(-0.3, 0.3, parameter.numel()).reshape(parameter.shape)
                sharded = getattr(parameter, "device_mesh", None)
                if sharded is not None:
                    numbers = torch.distributed.tensor.distribute_tensor(numbers, sharded, parameter.placements)
                parameter.copy_(numbers)


def save_on_ranks(rank: int, num_ranks: int, folder: Path, names: tuple[str, ...]) -> None:
    """Load each model in `folder`/<name> sharded, and save it to `folder`/<name>.saved, or as adapters with lora."""
    for name in names:
        lora = LORA if name.startswith("lora_") else None
        recipe = recipe_of(model={"lora": lora}, policy_ranks=num_ranks)
        mesh = fsdp.make_mesh(num_ranks, None, "cpu")
        policy = load_sharded_policy(folder / name.removeprefix("lora_"), recipe, mesh, CPU)
        give_effect(policy)
        trained = [each for each in policy.parameters() if each.requires_grad]
        save_sharded(folder / f"{name}.saved", policy, torch.optim.AdamW(trained))

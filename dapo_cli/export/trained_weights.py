"""What a checkpoint holds of the policy: all of its weights, or with LoRA the adapters beside a base model.

Tensors are lazy: their shapes are known, and their values are read one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.errors import DapoError, UsageError, VerificationError
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.schema import Lora
from dapo_cli.run.base_model import base_of
from dapo_cli.run.directory import RunDirectory

if TYPE_CHECKING:
    import torch

    from dapo_cli.export.lazy_tensors import LazyTensor

WEIGHTS = "model.safetensors"
SHARDED = "policy"
"""What the ranks of a cluster write in its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A policy as a LoRA run trained it: frozen weights in `model.dtype`, adapters in float32."""

    policy: Any
    lora: Lora
    base_model: str
    """Folder or hub id."""
    revision: str | None


def policy_tensors(run: RunDirectory, checkpoint: Path) -> dict[str, LazyTensor]:
    """The whole policy of a checkpoint by name, float32; a LoRA run's adapters are added to its base model's weights.

    Raises:
        DapoError: files are missing or cannot be read.
        UsageError: the base model of a LoRA run is not the one that it was trained on.
        VerificationError: the adapters are not those of weights that the base model has.
    """
    trained = trained_tensors(checkpoint)
    lora = load_recipe(run.recipe_file).recipe.model.lora
    if lora is None:
        return trained
    from dapo_cli.export.lora_merge import merged
    from dapo_cli.policy.sharded_load import local_model_folder

    base_model, model = base_of(run)
    folder = local_model_folder(base_model, model.revision)
    return merged(folder, trained, lora, model.dtype)


def trained_tensors(checkpoint: Path) -> dict[str, LazyTensor]:
    """The trained tensors by name, float32, from whichever backend's files there are.

    Raises:
        DapoError: there are none, or they cannot be read.
    """
    from dapo_cli.export.lazy_tensors import LazyTensor
    from dapo_cli.export.safetensors_files import read_lazily

    weights = checkpoint / WEIGHTS
    if weights.is_file():
        return read_lazily([weights])
    if not (checkpoint / SHARDED).is_dir():
        raise DapoError(f"{weights}: no such file", hint="Is the checkpoint complete?")
    import torch

    from dapo_cli.policy.sharded_checkpoint import open_policy_tensors

    return {
        name: LazyTensor(shape, torch.float32, read) for name, (shape, read) in open_policy_tensors(checkpoint).items()
    }


def read_all(tensors: Mapping[str, LazyTensor]) -> dict[str, torch.Tensor]:
    """Their values, all in memory."""
    return {name: tensor.read().clone() for name, tensor in tensors.items()}


def load_adapted(run: RunDirectory, checkpoint: Path) -> Adapted:
    """The base model of a LoRA run with the checkpoint's adapters, on the CPU and in eval mode.

    Raises:
        UsageError: it is no LoRA run, or its base model is not the one that it was trained on.
        VerificationError: the checkpoint's adapters are not those of the recipe.
    """
    lora = load_recipe(run.recipe_file).recipe.model.lora
    if lora is None:
        raise UsageError(
            f"{run.path}: all weights were trained: there is no adapter", hint="dapo convert without --adapter"
        )
    import torch

    from dapo_cli.policy.lora import add_adapters, load_trained_tensors
    from dapo_cli.policy.model import load_model

    base_model, model = base_of(run)
    plain = model.model_copy(update={"activation_checkpointing": False})
    policy = load_model(base_model, plain, torch.device("cpu"))
    add_adapters(policy, lora, 0, model.dtype)
    try:
        load_trained_tensors(policy, read_all(trained_tensors(checkpoint)))
    except RuntimeError as error:
        raise VerificationError(f"{checkpoint}: not the adapters of this run's recipe: {error}") from error
    return Adapted(policy.eval(), lora, base_model, model.revision)

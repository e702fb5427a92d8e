"""The base model of a run, told apart from others without reading all of it.

Checkpoints of a LoRA run hold its adapters alone: they mean nothing beside other weights than they were trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.policy.model import resolve_model
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.schema import Model
from dapo_cli.run.directory import RunDirectory
from dapo_cli.workload import MODEL_CACHE

_BLOCKS, _BLOCK_BYTES = 64, 4096


def model_identity(resolved: str, config: Any) -> dict[str, Any]:
    """What tells these weights from others: the commit of a hub id, or size and sampled content of a folder's files."""
    folder = Path(resolved)
    if not folder.is_dir():
        return {"commit": getattr(config, "_commit_hash", None)}
    files = sorted(folder.glob("*.safetensors"))
    return {"files_bytes": {file.name: file.stat().st_size for file in files}, "fingerprint": _fingerprint(files)}


def _fingerprint(files: Sequence[Path]) -> str:
    """Hash of 64 blocks of 4 KiB, evenly spaced over each file: training or merging changes nearly all of a file."""
    digest = blake2b(digest_size=16)
    for path in files:
        last = max(path.stat().st_size - _BLOCK_BYTES, 0)
        with path.open("rb") as file:
            for block in range(_BLOCKS):
                file.seek(last * block // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def base_of(run: RunDirectory) -> tuple[str, Model]:
    """Folder or hub id, and the section `model` that loads what the run was trained on, a hub id at its commit.

    Raises:
        UsageError: it is not there any more, or has other weights now.
    """
    model = load_recipe(run.recipe_file).recipe.model
    commit = run.manifest()["model"].get("commit")
    if commit is not None:
        model = model.model_copy(update={"revision": commit})
    return refuse_other_base(run, model), model


def refuse_other_base(run: RunDirectory, model: Model) -> str:
    """Folder or hub id of `model`, which must have the weights that `run` was trained on.

    Raises:
        UsageError: it has others, or is not there.
    """
    from transformers import AutoConfig

    resolved = resolve_model(model, MODEL_CACHE)
    local = Path(resolved).is_dir()
    config = None if local else AutoConfig.from_pretrained(resolved, revision=model.revision)
    found = model_identity(resolved, config)
    recorded = {key: value for key, value in run.manifest()["model"].items() if key != "path"}
    different = sorted(key for key, value in recorded.items() if found.get(key) != value)
    if different:
        lines = "\n".join(f"  {key}: {recorded[key]} in the run, {found.get(key)} now" for key in different)
        pinned = f"--from {run.path} --run-dir DIR --set model.revision={recorded.get('commit')} goes on with the old"
        raise UsageError(
            f"model.path: {model.path}: not the weights that the adapters of {run.path} were trained on\n{lines}",
            hint="put the old weights back where the recipe says" if local else pinned,
        )
    return resolved

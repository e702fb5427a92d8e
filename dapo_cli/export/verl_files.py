"""Where the files of a verl checkpoint are, and which layouts are not read.

<run>/latest_checkpointed_iteration.txt  N
<run>/global_step_N/actor/               model_world_size_W_rank_r.pt, fsdp_config.json, huggingface/
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError, UsageError

LATEST = "latest_checkpointed_iteration.txt"
FSDP_CONFIG = "fsdp_config.json"
_RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_STEP = re.compile(r"global_step_(\d+)")
_MEGATRON = ("dist_ckpt", "dist_checkpointing")
_ROLES = ("actor", "model")


@dataclass(frozen=True, slots=True)
class VerlCheckpoint:
    """The folder with the files of the ranks."""

    folder: Path
    ranks: int
    step: int | None
    """None where no folder's name tells it."""

    def rank_file(self, rank: int) -> Path:
        """Weights of one rank."""
        return self.folder / f"model_world_size_{self.ranks}_rank_{rank}.pt"

    @property
    def description(self) -> Path:
        """Config and tokenizer, and on request verl puts weights there too."""
        return self.folder / "huggingface"


def find_verl_checkpoint(path: Path) -> VerlCheckpoint:
    """The checkpoint in `path`: a folder with the files of the ranks, a global_step_N, or a run with its latest step.

    Raises:
        DapoError: a file that must be there is not.
        UsageError: it is no checkpoint of verl's FSDP backend; says which other layout it is where that shows.
    """
    if not path.is_dir():
        raise UsageError(
            f"{path}: no such folder", hint="give a run of verl, its global_step_N, or global_step_N/actor"
        )
    folder = _rank_folder(path)
    _refuse_other_layouts(folder)
    numbers = [match[1] for parent in (folder, *folder.parents[:1]) if (match := _STEP.fullmatch(parent.name))]
    return VerlCheckpoint(folder, _count_ranks(folder), int(numbers[0]) if numbers else None)


def _rank_folder(path: Path) -> Path:
    if (path / LATEST).is_file():
        text = (path / LATEST).read_text(encoding="utf-8").strip()
        if not text.isdecimal():
            raise DapoError(f"{path / LATEST}: holds no number, got {text[:40]!r}", hint="give a global_step_N folder")
        path = path / f"global_step_{text}"
        if not path.is_dir():
            raise DapoError(f"{path}: no such folder, though {LATEST} names it", hint="give another global_step_N")
    elif steps := sorted((each.name for each in path.glob("global_step_*") if each.is_dir()), key=_number):
        raise UsageError(
            f"{path}: no {LATEST} says which step is meant", hint=f"give one: {', '.join(map(str, steps[-5:]))}"
        )
    inside = [path / role for role in _ROLES if (path / role).is_dir()]
    return path if _rank_files(path) or not inside else inside[0]


def _number(name: str) -> int:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else -1


def _rank_files(folder: Path) -> list[re.Match[str]]:
    return [match for file in folder.iterdir() if (match := _RANK_FILE.fullmatch(file.name))]


def _refuse_other_layouts(folder: Path) -> None:
    for name in _MEGATRON:
        if (folder / name).is_dir():
            raise UsageError(
                f"{folder / name}: a checkpoint of verl's Megatron backend, which is not read",
                hint="merge it with verl's own model_merger --backend megatron",
            )
    if folder.name == "critic":
        raise UsageError(f"{folder}: a critic, which is no language model", hint="give the actor folder beside it")
    if (folder / ".metadata").is_file():
        raise UsageError(
            f"{folder}: a distributed checkpoint of torch (.metadata, .distcp), not verl's file per rank",
            hint="verl's FSDP backend writes model_world_size_W_rank_R.pt",
        )


def _count_ranks(folder: Path) -> int:
    """World size by fsdp_config.json, or by the names of the files where there is none."""
    by_name = sorted({int(match[1]) for match in _rank_files(folder)})
    if not by_name:
        raise UsageError(
            f"{folder}: no file model_world_size_W_rank_R.pt, which verl's FSDP backend writes",
            hint="give a run of verl, its global_step_N, or global_step_N/actor",
        )
    config = folder / FSDP_CONFIG
    if config.is_file():
        recorded = read_json(config).get("world_size")
        if recorded not in by_name:
            raise DapoError(
                f"{config}: world_size {recorded}, but the files are of {', '.join(map(str, by_name))} ranks"
            )
        return int(recorded)
    if len(by_name) > 1:
        raise UsageError(
            f"{folder}: files of {' and of '.join(map(str, by_name))} ranks, and no {FSDP_CONFIG} says which are meant",
            hint="move those of the older save aside",
        )
    return by_name[0]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DapoError: it holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DapoError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DapoError(f"{path}: not a JSON object")
    return values

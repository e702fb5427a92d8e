"""Whether a checkpoint fits the disk, asked before it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.recipe.schema_run import Checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note
from dapo_cli.run.integrity import sealed_bytes

BYTES_PER_PARAMETER = 12
"""The weight and AdamW's two moments of a trained parameter, in float32: 390 GB for 32 billion."""
_SMALL_FILES_BYTES = 1_000_000


def expected_bytes(run: RunDirectory, trained_parameters: int) -> int:
    """What the next checkpoint will take: as much as the newest one, else by the number of trained parameters."""
    folders = sorted(run.checkpoints.glob("step_*"), key=lambda path: path.stat().st_mtime, reverse=True)
    sizes = (sealed_bytes(folder) for folder in folders)
    return next((size for size in sizes if size is not None), first_bytes(trained_parameters))


def first_bytes(trained_parameters: int) -> int:
    """What a checkpoint of so many trained parameters takes.

    >>> round(first_bytes(32_500_000_000) / 1e9)
    390
    """
    return BYTES_PER_PARAMETER * trained_parameters + _SMALL_FILES_BYTES


def refuse_full_disk(folder: Path, needed_bytes: int) -> None:
    """Pass where `needed_bytes` are free on the disk of `folder`.

    Raises:
        DapoError: they are not.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        raise DapoError(
            f"{folder}: a checkpoint takes {_gigabytes(needed_bytes)}, and {_gigabytes(free)} are free; "
            "nothing was written",
            hint="make room, then continue from the checkpoint before with --resume",
        )


def check_room(run_dir: Path, trained_parameters: int, checkpoint: Checkpoint, note: Note, there: int = 0) -> None:
    """Before training: refuse where not even one checkpoint fits, say where not all that are kept do.

    A new checkpoint is written before an old one is removed. `there` are on the disk already, as at a resume.

    Raises:
        UsageError: not even one fits.
    """
    one, free = first_bytes(trained_parameters), free_bytes(run_dir)
    if free < one:
        raise UsageError(
            f"{run_dir}: a checkpoint of this run takes {_gigabytes(one)}, and {_gigabytes(free)} are free on its disk",
            hint="make room, or --run-dir on another disk",
        )
    if checkpoint.keep_last == "all":
        return
    most = checkpoint.keep_last + checkpoint.keep_best + 1
    if free < max(most - there, 1) * one:
        note(
            f"{run_dir}: {most} checkpoints of {_gigabytes(one)} are there at once at most (checkpoint.keep_last and "
            f"keep_best, and the one that is written), and {_gigabytes(free)} are free: a later save may not fit"
        )


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder that may not exist yet."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free


def human_size(size_bytes: int) -> str:
    """Bytes for people.

    >>> human_size(390_000_000_000), human_size(1_234_567), human_size(999_999), human_size(12)
    ('390 GB', '1.23 MB', '1 MB', '12 B')
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= 0.9995 * factor:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def _gigabytes(size_bytes: int) -> str:
    return f"{_three_digits(size_bytes / 1e9)} GB"


def _three_digits(value: float) -> str:
    """Of 1000 and more all digits, which `g` would turn into an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"

"""`dapo checkpoints`: what there is in a run's `checkpoints/`, complete or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.table import Table

from dapo_cli.run.checkpoints import best_steps, replaced, saved_steps, unfinished
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.disk import human_size
from dapo_cli.run.integrity import MANIFEST_FILE, find_damage, sealed_metric


@dataclass(frozen=True, slots=True)
class Listed:
    """One folder in `checkpoints/`."""

    name: str
    step: int
    size_bytes: int
    written: str | None
    """When its save ended, local time in ISO format; None: it did not."""
    metric: tuple[str, float] | None
    trouble: str | None
    """Why it is passed over; None: it is complete."""
    marks: tuple[str, ...] = ()
    """newest, best: among the complete ones."""


def list_checkpoints(run: RunDirectory, *, check_hashes: bool) -> list[Listed]:
    """Every checkpoint of a run and what the next save will remove, by step.

    Sizes are compared, with `check_hashes` content too. The best is the one with the highest metric. The run may go on
    meanwhile: what it removes while it is looked at is left out.
    """
    if not run.checkpoints.is_dir():
        return []
    folders = saved_steps(run)
    found = {step: each for step, path in folders.items() if (each := _listed(path, step, check_hashes)) is not None}
    complete = {step: folders[step] for step, each in found.items() if each.trouble is None}
    best, newest = best_steps(complete, 1), max(complete, default=None)
    listed = []
    for step, each in found.items():
        marks = {"newest": step == newest, "best": step in best, "the next save puts it back": each.name[0] == "."}
        listed.append(replace(each, marks=tuple(mark for mark, holds in marks.items() if holds)))
    passed = [(path, step, "a save that has not finished") for path, step in unfinished(run)]
    passed += [(path, step, "replaced by a newer save") for path, step in replaced(run)]
    sizes = [(path.name, step, _size(path), why) for path, step, why in passed]
    listed += [Listed(name, step, size, None, None, why) for name, step, size, why in sizes if size is not None]
    return sorted(listed, key=lambda each: (each.step, each.name))


def _listed(path: Path, step: int, check_hashes: bool) -> Listed | None:
    """None: it was removed meanwhile."""
    manifest, written = path / MANIFEST_FILE, None
    try:
        if manifest.is_file():
            written = datetime.fromtimestamp(manifest.stat().st_mtime).astimezone().isoformat(timespec="seconds")
        trouble = find_damage(path, step, check_hashes=check_hashes)
    except FileNotFoundError:
        return None
    size = _size(path)
    return None if size is None else Listed(path.name, step, size, written, sealed_metric(path), trouble)


def _size(folder: Path) -> int | None:
    """Bytes of all files; None: `folder` was removed meanwhile."""
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:
        return None
    return size if folder.is_dir() else None


def checkpoint_table(listed: Sequence[Listed]) -> Table:
    """The list as a table that fits 80 columns."""
    table = Table(box=None, pad_edge=False)
    for header, justify in (("step", "right"), ("size", "right"), ("written", "left"), ("score", "right")):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("state", overflow="fold")
    for each in listed:
        written = "-" if each.written is None else each.written[:19].replace("T", " ")
        score = "-" if each.metric is None else f"{each.metric[1]:.4g}"
        state = ", ".join(["complete", *each.marks]) if each.trouble is None else f"NOT COMPLETE: {each.trouble}"
        table.add_row(str(each.step), human_size(each.size_bytes), written, score, state)
    return table

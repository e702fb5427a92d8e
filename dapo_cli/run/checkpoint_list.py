"""`dapo checkpoints`: what there is in a run's `checkpoints/`, complete or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.table import Table

from dapo_cli.run.checkpoints import best_steps, unfinished
from dapo_cli.run.directory import RunDirectory
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
    """Every checkpoint of a run and what unfinished saves left, by step.

    Sizes are compared, with `check_hashes` content too. The best is the one with the highest metric.
    """
    if not run.checkpoints.is_dir():
        return []
    finals = {int(path.name[5:]): path for path in run.checkpoints.glob("step_*") if path.name[5:].isdigit()}
    found = {step: _listed(path, step, check_hashes) for step, path in finals.items()}
    complete = sorted(step for step, each in found.items() if each.trouble is None)
    best = best_steps(run.checkpoints, complete, 1)
    listed = []
    for step, each in found.items():
        marks = [mark for mark, steps in (("newest", complete[-1:]), ("best", best)) if step in steps]
        listed.append(replace(each, marks=tuple(marks)))
    listed += [
        Listed(path.name, step, _size(path), None, None, "a save that did not finish")
        for path, step in unfinished(run.checkpoints)
    ]
    return sorted(listed, key=lambda each: (each.step, each.name))


def _listed(path: Path, step: int, check_hashes: bool) -> Listed:
    manifest = path / MANIFEST_FILE
    written = None
    if manifest.is_file():
        written = datetime.fromtimestamp(manifest.stat().st_mtime).astimezone().isoformat(timespec="seconds")
    trouble = find_damage(path, step, check_hashes=check_hashes)
    return Listed(path.name, step, _size(path), written, sealed_metric(path), trouble)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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


def human_size(size_bytes: int) -> str:
    """Bytes for people.

    >>> human_size(390_000_000_000), human_size(1_234_567), human_size(12)
    ('390 GB', '1.23 MB', '12 B')
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"

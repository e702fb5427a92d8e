"""Checkpoints that are complete or absent: written aside, sealed with hashes, then renamed into place.

checkpoints/step_40/   the backend's files, state.json (the loop's state), manifest.json (size and sha256 of each)
checkpoints/.step_60.partial-<pid>/    a save that has not finished
checkpoints/.step_40.replaced-<pid>/   the old step_40 while a new one takes its place
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note, print_note, sync_folder
from dapo_cli.run.integrity import MANIFEST_FILE, Metric, find_damage, require_plain, seal, sealed_metric

STATE_FILE = "state.json"

_FINAL = re.compile(r"step_(\d+)")
_REPLACED = re.compile(r"\.step_(\d+)\.replaced-\d+")
_PARTIAL = re.compile(r"\.step_(\d+)\.partial-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; the backend loads its tensors from `path`."""

    step: int
    path: Path
    state: dict[str, Any]
    """What the loop stored: JSON values, tuples come back as lists."""


Write = Callable[[Path], Callable[[], None] | None]
"""Puts a backend's files into a folder; what it returns waits until they are written, None: they are."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay when one has been added."""

    last: int | Literal["all"]
    best: int = 0
    """So many with the highest metric stay besides; ties go to the later one."""


def save_checkpoint(
    run: RunDirectory, step: int, write: Write, state: Mapping[str, Any], keep: Keep, metric: Metric | None = None
) -> Checkpoint:
    """`begin_checkpoint`, and wait for its end."""
    return begin_checkpoint(run, step, write, state, keep, metric)()


def begin_checkpoint(
    run: RunDirectory, step: int, write: Write, state: Mapping[str, Any], keep: Keep, metric: Metric | None = None
) -> Callable[[], Checkpoint]:
    """Begin to save `checkpoints/step_<step>`; the function returned completes it, from whatever thread it is called.

    It seals the folder with `metric`, renames it into place and removes those that `keep` does not name. The caller
    holds the run's lock and begins no other checkpoint meanwhile. `state` holds JSON values only. Killed at any moment,
    the checkpoints saved before are still found and none looks complete that is not.

    Raises:
        TypeError: `state` holds something that JSON would change; names where.
        DapoError: the files cannot be written, here or at the end; what was saved before is still there.
    """
    require_plain(state, "state")
    text = json.dumps(state)
    clear_leftovers(run)
    partial = run.checkpoints / f".step_{step}.partial-{os.getpid()}"
    final = run.checkpoints / f"step_{step}"
    with _removed_on_failure(partial, final):
        partial.mkdir()
        wait = write(partial)

    def finish() -> Checkpoint:
        with _removed_on_failure(partial, final):
            if wait is not None:
                wait()
            (partial / STATE_FILE).write_text(text, encoding="utf-8")
            seal(partial, step, metric)
            _move_in(partial, final)
        _rotate(run.checkpoints, step, keep)
        return Checkpoint(step, final, json.loads(text))

    return finish


@contextmanager
def _removed_on_failure(partial: Path, final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise DapoError(
            f"{final}: checkpoint cannot be written: {error}",
            hint="free some disk space, then continue from the checkpoint before with --resume",
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def newest_complete(run: RunDirectory, note: Note = print_note) -> Checkpoint | None:
    """The newest checkpoint whose sizes and hashes are right; says why a newer one was skipped."""
    for entry, _ in unfinished(run):
        note(f"{entry}: skipped: a save that did not finish")
    found = saved_steps(run)
    for step in sorted(found, reverse=True):
        reason = find_damage(found[step], step, check_hashes=True)
        if reason is None:
            return _read(found[step], step)
        note(f"{found[step]}: skipped: {reason}")
    return None


def find_checkpoint(run: RunDirectory, step: int | None, note: Note = print_note) -> Checkpoint:
    """The checkpoint of `step`, or the newest complete one for None.

    Raises:
        UsageError: there is none; names the steps there are.
        DapoError: the one asked for is damaged.
    """
    found = saved_steps(run)
    steps = ", ".join(map(str, sorted(found))) or "none"
    if step is None:
        newest = newest_complete(run, note)
        if newest is None:
            raise UsageError(f"{run.path}: no complete checkpoint; got {steps}", hint="`dapo train` writes them")
        return newest
    if step not in found:
        raise UsageError(f"{run.path}: no checkpoint of step {step}", hint=f"checkpoints there: {steps}")
    reason = find_damage(found[step], step, check_hashes=True)
    if reason is not None:
        raise DapoError(f"{found[step]}: checkpoint is damaged: {reason}", hint=f"checkpoints there: {steps}")
    return _read(found[step], step)


def parse_run_reference(text: str) -> tuple[Path, int | None]:
    """Split `RUN[@STEP]`; an existing folder of that very name is taken whole.

    >>> parse_run_reference("runs/demo@40")
    (PosixPath('runs/demo'), 40)
    >>> parse_run_reference("runs/demo")
    (PosixPath('runs/demo'), None)

    Raises:
        UsageError: no folder, or a step that is not a number.
    """
    folder, at, step = text.rpartition("@")
    if not at or Path(text).is_dir():
        folder, step = text, ""
    elif not re.fullmatch(r"[0-9]+", step):
        raise UsageError(f"{text}: the step after @ must be a number, got {step!r}", hint="write RUN@40")
    if not folder:
        raise UsageError(f"{text!r}: no run directory given", hint="write RUN or RUN@40")
    return Path(folder), int(step) if step else None


def saved_steps(run: RunDirectory) -> dict[int, Path]:
    """Folders of finished saves by step; their content is not checked."""
    if not run.checkpoints.is_dir():
        return {}
    folders = [entry for entry in run.checkpoints.iterdir() if entry.is_dir()]
    asides = {int(match[1]): entry for entry in folders if (match := _REPLACED.fullmatch(entry.name))}
    finals = {int(match[1]): entry for entry in folders if (match := _FINAL.fullmatch(entry.name))}
    return asides | finals


def unfinished(run: RunDirectory) -> list[tuple[Path, int]]:
    """Saves that were killed, or still go on, with the step each is of."""
    return _named(_PARTIAL, run)


def replaced(run: RunDirectory) -> list[tuple[Path, int]]:
    """Old checkpoints that a newer save of their step has replaced, and that the next one removes."""
    current = saved_steps(run)
    return [(path, step) for path, step in _named(_REPLACED, run) if current.get(step) != path]


def _named(pattern: re.Pattern[str], run: RunDirectory) -> list[tuple[Path, int]]:
    entries = sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    matches = [(entry, pattern.fullmatch(entry.name)) for entry in entries]
    return [(entry, int(match[1])) for entry, match in matches if match]


def _read(folder: Path, step: int) -> Checkpoint:
    return Checkpoint(step, folder, json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))


def _move_in(partial: Path, final: Path) -> None:
    aside = final.with_name(f".{final.name}.replaced-{os.getpid()}")
    if final.exists():
        os.rename(final, aside)
    os.rename(partial, final)
    sync_folder(final.parent)
    if aside.exists():
        shutil.rmtree(aside)


def clear_leftovers(run: RunDirectory) -> None:
    """Remove what killed saves left, and put back a checkpoint whose replacement never came; the lock is held."""
    checkpoints = run.checkpoints
    checkpoints.mkdir(parents=True, exist_ok=True)
    for entry in list(checkpoints.iterdir()):
        replaced = _REPLACED.fullmatch(entry.name)
        if replaced and not (checkpoints / f"step_{replaced[1]}").exists():
            os.rename(entry, checkpoints / f"step_{replaced[1]}")
        elif replaced or _PARTIAL.fullmatch(entry.name):
            shutil.rmtree(entry)


def _rotate(checkpoints: Path, newest: int, keep: Keep) -> None:
    """Remove what `keep` does not name among the checkpoints up to step `newest`; damaged ones are never kept.

    Later ones stay: the run went on from before them because they were damaged, and replaces them when it gets there.
    """
    if keep.last == "all":
        return
    finals = (_FINAL.fullmatch(entry.name) for entry in checkpoints.iterdir())
    steps = sorted((int(match[1]) for match in finals if match and int(match[1]) <= newest), reverse=True)
    folders = {step: checkpoints / f"step_{step}" for step in steps}
    complete = {s: path for s, path in folders.items() if find_damage(path, s, check_hashes=False) is None}
    kept = {*list(complete)[: keep.last], *best_steps(complete, keep.best)}
    for step in set(steps) - kept:
        # Without its manifest a half-removed checkpoint cannot be taken for a complete one.
        (folders[step] / MANIFEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(folders[step])


def best_steps(folders: Mapping[int, Path], count: int) -> list[int]:
    """The `count` steps of `folders` with the highest metric, the best first; those without one are left out.

    Only values of the metric that the latest of them has are compared: a resume may have changed
    `checkpoint.best_metric`. Of an evaluation's avg@n any n will do, as its mean does not depend on it.
    """
    metrics = {step: metric for step, path in folders.items() if (metric := sealed_metric(path)) is not None}
    if not metrics:
        return []
    current = _kind(metrics[max(metrics)][0])
    worth = {step: value for step, (name, value) in metrics.items() if _kind(name) == current}
    return sorted(worth, key=lambda step: (worth[step], step), reverse=True)[:count]


def _kind(metric: str) -> str:
    return re.sub(r"/avg@\d+$", "/avg@n", metric)

"""`metrics.jsonl`: one JSON object per step, from what the stages add while the step runs.

Several values of one key in a step, such as those of its updates, become one by the end of the key's name:

    *_max, *_min        the largest, the smallest
    *_count, time/*     the sum
    no slash in it      the last
    every other         the weighted mean

A trailing `_kept` is not looked at. Keys are in a fixed order: `step`, `updates`, then by prefix, then by name.
Everything but `time/` and `perf/` repeats exactly when a run is repeated.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError
from dapo_cli.run.files import Note, next_free, print_note, write_atomic

Row = dict[str, Any]

PREFIXES = ("rollout", "reward", "advantage", "loss", "update", "sync", "eval", "time", "perf")


class Metrics:
    """Collects a step's values and appends its line; a step that raises leaves no line."""

    def __init__(self, path: Path, note: Note = print_note) -> None:
        """Go on after the last line of `path`; the file need not exist.

        Raises:
            ValueError: the last line is torn.
        """
        self._path = path
        self._note = note
        self._values: dict[str, list[tuple[float, float]]] | None = None
        self._seconds: dict[str, float] = {}
        self._memory_bytes: dict[str, int] = {}
        lines = read(path)
        if path.exists() and path.read_bytes()[-1:] not in {b"", b"\n"}:
            raise ValueError(f"{path}: its last line is torn; truncate_after() first")
        self._last_step = int(lines[-1]["step"]) if lines else -1
        self.last: Row = lines[-1] if lines else {}
        """The line written last, empty before the first."""

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Collect what is added in the body and write it as the line of `step`; step 0 is before training.

        Raises:
            ValueError: the file already has a line of this step or a later one.
        """
        if step <= self._last_step:
            raise ValueError(f"{self._path}: step {step} comes after step {self._last_step}; truncate_after() first")
        self._values = {}
        started = time.perf_counter()
        try:
            yield
            self._write(step, self._values, time.perf_counter() - started)
        finally:
            self._values = None

    def add(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        """Add values to the current step; `weight` counts for the keys that are averaged.

        Raises:
            RuntimeError: no step is being collected.
            ValueError: `weight` is not above 0.
        """
        if self._values is None:
            raise RuntimeError("Metrics.add() outside of Metrics.step()")
        if not weight > 0:
            raise ValueError(f"weight must be above 0, got {weight}")
        for key, value in values.items():
            self._values.setdefault(key, []).append((value, weight))

    @contextlib.contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the seconds of the body to `time/<stage>`; outside of a step they go to the next step's line."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - started
            if (resident := resident_bytes()) is not None:
                self._memory_bytes[stage] = max(resident, self._memory_bytes.get(stage, 0))

    def _write(self, step: int, values: Mapping[str, list[tuple[float, float]]], seconds: float) -> None:
        row: Row = {"step": step} | {key: combine(key, pairs) for key, pairs in values.items()}
        row |= {f"time/{stage}": round(spent, 6) for stage, spent in self._seconds.items()}
        row |= {f"perf/memory_after_{stage}_bytes": size for stage, size in self._memory_bytes.items()}
        row |= {"time/step": round(seconds, 6), "perf/peak_memory_bytes": peak_memory_bytes()}
        if row.get("rollout/response_tokens") and row.get("time/generate"):
            row["perf/generated_tokens_per_second"] = row["rollout/response_tokens"] / row["time/generate"]
        if row.get("rollout/response_tokens") and seconds > 0:
            row["perf/response_tokens_per_second"] = row["rollout/response_tokens"] / seconds
        row = ordered(self._strict(step, row))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._seconds, self._memory_bytes = {}, {}
        self._last_step = step
        self.last = row

    def _strict(self, step: int, row: Row) -> Row:
        """JSON has no NaN or infinity: null in the file, and said aloud."""
        for key in [key for key, value in row.items() if not math.isfinite(value)]:
            self._note(f"step {step}: {key} is {row[key]}; null in {self._path.name}")
            row[key] = None
        return row


def combine(key: str, pairs: list[tuple[float, float]]) -> float:
    """One value from (value, weight) pairs, by the rule for `key` above; whole numbers stay whole.

    >>> combine("loss/policy", [(1.0, 1.0), (4.0, 2.0)]), combine("update/skipped_count", [(1, 1.0), (2, 1.0)])
    (3.0, 3)
    """
    values = [value.item() if hasattr(value, "item") else value for value, _ in pairs]
    name = key.removesuffix("_kept")
    if len(values) == 1 or "/" not in key:
        return values[-1]
    if any(math.isnan(value) for value in values):
        return math.nan
    if name.endswith("_max"):
        return max(values)
    if name.endswith("_min"):
        return min(values)
    if name.endswith("_count") or key.startswith("time/"):
        return sum(values)
    weights = [weight for _, weight in pairs]
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def ordered(row: Mapping[str, Any]) -> Row:
    """`row` in the order of the file: step, updates, then by prefix and name; other prefixes come before time."""
    before_time = PREFIXES.index("time")

    def place(key: str) -> tuple[float, str]:
        if "/" not in key:
            return {"step": -3, "updates": -2}.get(key, -1), key
        prefix = key.split("/", 1)[0]
        return (PREFIXES.index(prefix) if prefix in PREFIXES else before_time - 0.5), key

    return {key: row[key] for key in sorted(row, key=place)}


def resident_bytes() -> int | None:
    """Memory that this process holds now; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def peak_memory_bytes() -> int:
    """Most memory this process has held so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read(path: Path) -> list[Row]:
    """The lines of a metrics file in order; empty when there is no file.

    A last line without its end, left by a killed process, is not a line yet.

    Raises:
        DapoError: another line is not a JSON object with a step.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        row = _parse(line)
        if row is None:
            raise DapoError(
                f"{path}:{number}: not a JSON object with a step", hint="dapo train --resume moves such lines aside"
            )
        rows.append(row)
    return rows


def time_shares(rows: Sequence[Row]) -> str:
    """Where the time of all steps went, the largest share first; evaluation is one of them.

    >>> time_shares([{"step": 1, "time/step": 60.0, "time/generate": 45.0, "time/eval": 6.0}])
    '1.0 min in steps: generate 75%, eval 10%, the rest 15%'
    """
    whole = sum(row.get("time/step", 0.0) for row in rows)
    stages = {key for row in rows for key in row if key.startswith("time/") and key != "time/step"}
    spent = {stage: sum(row.get(stage, 0.0) for row in rows) for stage in sorted(stages)}
    if not whole:
        return "no time in steps"
    named = sorted(spent.items(), key=lambda item: -item[1])
    shares = [f"{stage.removeprefix('time/')} {seconds / whole:.0%}" for stage, seconds in named]
    rest = max(0.0, 1 - sum(spent.values()) / whole)
    return f"{whole / 60:.1f} min in steps: {', '.join([*shares, f'the rest {rest:.0%}'])}"


def truncate_after(path: Path, step: int | None, note: Note = print_note) -> Path | None:
    """Move the lines after `step` aside before a resume, so that no step appears twice.

    They, and lines that a killed process left torn, go to `metrics.after-<step>.<n>.jsonl` beside the file; None
    moves every line (to `metrics.after-start.<n>.jsonl`). Returns that file, or None when there was nothing to move.
    """
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    stays = [_stays(line, step) for line in lines]
    kept = [line for line, stay in zip(lines, stays, strict=True) if stay]
    moved = [line for line, stay in zip(lines, stays, strict=True) if not stay]
    if step and (not kept or (_parse(kept[-1]) or {}).get("step") != step):
        note(f"{path}: has no line of step {step}, which the checkpoint is of; the curve has a gap there")
    if not moved:
        return None
    since = "start" if step is None else str(step)
    aside = next_free(path.parent, f"{path.stem}.after-{since}.{{}}{path.suffix}")
    write_atomic(aside, "".join(moved))
    write_atomic(path, "".join(kept))
    note(f"{path}: {len(moved)} lines after step {since} moved to {aside.name}")
    return aside


def _stays(line: str, step: int | None) -> bool:
    row = _parse(line)
    return row is not None and line.endswith("\n") and step is not None and row["step"] <= step


def _parse(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None

"""A history exported from wandb, with verl's names mapped to ours: something to lie under one's own curves."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.run.verl_names import from_verl

_STEP_COLUMNS = ("training/global_step", "_step", "Step", "step")


def load_reference(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """Rows with our metric names, by step, and the columns that we have no metric for.

    The file is CSV as the web page exports it, whose columns may begin with a run's name and ` - `, or JSON lines or a
    JSON array as the API gives. Of several runs in one file the first with a column is taken.

    Raises:
        UsageError: it cannot be read, has no step column, or nothing that we measure.
    """
    try:
        rows = list(_csv(path) if path.suffix == ".csv" else _json(path))
    except OSError as error:
        raise UsageError(f"--reference: {path}: {error.strerror}") from error
    if not rows:
        raise UsageError(f"--reference: {path}: there are no rows in it")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    step = next((name for name in _STEP_COLUMNS if name in columns), None)
    if step is None:
        raise UsageError(
            f"--reference: {path}: no step column; columns: {', '.join(columns[:10])}",
            hint=f"one of {', '.join(_STEP_COLUMNS)} is needed",
        )
    names: dict[str, str] = {}
    unknown = []
    for column in columns:
        ours = from_verl(column.rpartition(" - ")[2])
        if column == step or column in _STEP_COLUMNS:
            continue
        if ours is None or column.endswith(("__MIN", "__MAX")):
            unknown.append(column)
        elif ours not in names.values():
            names[column] = ours
    if not names:
        raise UsageError(f"--reference: {path}: none of its columns is a metric of verl; got {', '.join(columns[:10])}")
    found = [_renamed(row, step, names) for row in rows]
    return sorted((row for row in found if len(row) > 1), key=lambda row: row["step"]), unknown


def _renamed(row: Mapping[str, Any], step: str, names: Mapping[str, str]) -> dict[str, float]:
    values = {"step": row.get(step)} | {ours: row.get(column) for column, ours in names.items()}
    numbers = {key: _number(value) for key, value in values.items()}
    if numbers["step"] is None:
        return {}
    return {key: value for key, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _csv(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file)


def _json(path: Path) -> Iterable[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        rows = _parsed(text, f"{path}")
    else:
        rows = [_parsed(line, f"{path}:{n}") for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(f"--reference: {path}: row {number} is not an object")
        yield row


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--reference: {where}: not valid JSON: {error}", hint="CSV files end in .csv") from error

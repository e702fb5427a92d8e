"""The folder of an evaluation: samples.jsonl grows by one line per response, settings.json says what they belong to.

A killed evaluation leaves whole lines and at most one torn one. Opening the folder again cuts the file back to its
last complete problem and returns what is there, so that the finished file is the one an undisturbed run writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.run.files import write_atomic
from dapo_cli.types import FinishReason, Outcome

SAMPLES, SETTINGS, REPORT = "samples.jsonl", "settings.json", "report.json"


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One line of samples.jsonl: one scored response."""

    problem_id: str
    problem: str
    ground_truth: str
    sample: int
    """0, 1, ... within the problem."""
    seed: int
    response: str
    response_tokens: int
    finish_reason: FinishReason
    outcome: Outcome
    prediction: str | None


def open_folder(folder: Path, settings: dict[str, Any], samples_per_problem: int) -> list[SampleRecord]:
    """Start an evaluation in `folder`, or take up the one that is there; returns the samples of complete problems.

    Raises:
        UsageError: the folder holds an evaluation with other settings, or samples of unknown settings.
        DapoError: samples.jsonl is damaged before its last line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTINGS
    if path.exists():
        _refuse_other_settings(path, json.loads(path.read_text(encoding="utf-8")), settings)
        return _cut_to_complete_problems(folder / SAMPLES, samples_per_problem)
    if (folder / SAMPLES).exists():
        what = f"has {SAMPLES} but no {SETTINGS}, so it cannot be taken up"
        raise UsageError(f"{folder}: {what}", hint="Choose another --out.")
    write_json(path, settings)
    return []


def append_samples(path: Path, samples: Sequence[SampleRecord]) -> None:
    """Append one problem's samples and force them to disk."""
    with path.open("ab") as file:
        file.write("".join(json.dumps(asdict(sample)) + "\n" for sample in samples).encode())
        file.flush()
        os.fsync(file.fileno())


def read_samples(path: Path) -> list[SampleRecord]:
    """The whole lines of samples.jsonl; a torn last line is left out, a missing file is empty.

    Raises:
        DapoError: a whole line is not a sample.
    """
    return [_parse(path, number, line) for number, line in enumerate(_whole_lines(path), start=1)]


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part."""
    write_atomic(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _cut_to_complete_problems(path: Path, samples_per_problem: int) -> list[SampleRecord]:
    samples = read_samples(path)
    keep = len(samples) // samples_per_problem * samples_per_problem
    if path.exists():
        os.truncate(path, sum(len(line) + 1 for line in _whole_lines(path)[:keep]))
    return samples[:keep]


def _whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _parse(path: Path, number: int, line: bytes) -> SampleRecord:
    try:
        return SampleRecord(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise DapoError(f"{path}:{number}: not a sample: {error}", hint="Evaluate again into another --out.") from error


def _refuse_other_settings(path: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    there, now = _flatten(there), _flatten(json.loads(json.dumps(now)))
    differences = [
        f"  {key}: {there.get(key)!r} there, {now.get(key)!r} now"
        for key in sorted({*there, *now})
        if there.get(key) != now.get(key)
    ]
    if differences:
        lines = "\n".join(differences)
        raise UsageError(f"{path}: the folder holds another evaluation\n{lines}", hint="Choose another --out.")


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat

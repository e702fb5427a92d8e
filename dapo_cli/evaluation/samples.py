"""The folder of an evaluation: samples.jsonl grows by one line per response, settings.json says what they belong to.

Lines are in the order of arrival while the evaluation goes on. A killed one leaves whole lines and at most one torn
one, which is cut off when the folder is opened again. A finished file is in the order of problems and samples, so
that it does not tell whether it was ever interrupted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
    response_tokens: int | None
    """None where nobody counted."""
    finish_reason: FinishReason | None
    outcome: Outcome
    prediction: str | None


_FIELDS = tuple(SampleRecord.__dataclass_fields__)


def open_folder(folder: Path, settings: dict[str, Any]) -> list[SampleRecord]:
    """Start an evaluation in `folder`, or take up the one that is there; returns the samples that are there.

    Raises:
        UsageError: the folder holds an evaluation with other settings, or samples of unknown settings.
        DapoError: samples.jsonl is damaged before its last line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTINGS
    if path.exists():
        _refuse_other_settings(path, json.loads(path.read_text(encoding="utf-8")), settings)
        samples = read_samples(folder / SAMPLES)
        if (folder / SAMPLES).exists():
            os.truncate(folder / SAMPLES, sum(len(line) + 1 for line in _whole_lines(folder / SAMPLES)))
        return samples
    if (folder / SAMPLES).exists():
        what = f"has {SAMPLES} but no {SETTINGS}, so it cannot be taken up"
        raise UsageError(f"{folder}: {what}", hint="Choose another --out.")
    write_json(path, settings)
    return []


class SampleFile:
    """samples.jsonl while it grows: a line is out of this process at once, and on the disk within a second of the next.

    A process that is killed loses nothing; a machine that loses power, the responses since the last second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> SampleFile:
        self._file = self._path.open("ab")
        self._synced = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, sample: SampleRecord) -> None:
        """Add one line."""
        self._file.write(_line(sample))
        self._file.flush()
        if time.monotonic() - self._synced > 1:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()


def write_samples(path: Path, samples: Sequence[SampleRecord]) -> None:
    """Replace the file by `samples`, in their order; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.writelines(_line(sample) for sample in samples)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _line(sample: SampleRecord) -> bytes:
    return (json.dumps({name: getattr(sample, name) for name in _FIELDS}) + "\n").encode()


def read_samples(path: Path) -> list[SampleRecord]:
    """The whole lines of samples.jsonl; a torn last line is left out, a missing file is empty.

    Raises:
        DapoError: a whole line is not a sample.
    """
    return [_parse(path, number, line) for number, line in enumerate(_whole_lines(path), start=1)]


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part."""
    write_atomic(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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

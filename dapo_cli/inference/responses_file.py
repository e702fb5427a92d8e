"""The output file: one JSON object a line, appended as responses arrive, taken up again where it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dapo_cli.errors import DapoError, UsageError

FIXED = ("prompt", "gold", "seed", "model", "template", "scorer", "sampling")
"""What has to be equal for a response that is there to be the one that is asked for."""

Key = tuple[str, int]
"""Problem id and sample."""


class ResponsesFile:
    """Appends whole lines; a line is out of this process at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> ResponsesFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line."""
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()


def take_up(path: Path, wanted: Mapping[Key, Mapping[str, Any]]) -> dict[Key, dict[str, Any]]:
    """The records of the file that are wanted, after cutting off a line that was not finished; none of a new file.

    `wanted` says of each response what it depends on, the keys of `FIXED`.

    Raises:
        UsageError: a record is of the same problem and sample, but depends on something else.
        DapoError: a line is not a record.
    """
    if not path.exists():
        return {}
    *lines, torn = path.read_bytes().split(b"\n")
    records = [_parse(path, number, line) for number, line in enumerate(lines, start=1)]
    found: dict[Key, dict[str, Any]] = {}
    for number, record in enumerate(records, start=1):
        key = (record["problem_id"], record["sample"])
        if key in wanted:
            _refuse_others(f"{path}:{number}", record, wanted[key])
            found[key] = record
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    return found


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DapoError(f"{path}:{number}: not valid JSON: {error}", hint="Choose another --out.") from error
    if not isinstance(record, dict) or any(key not in record for key in ("problem_id", "sample", *FIXED)):
        raise UsageError(f"{path}:{number}: not a response of dapo infer", hint="Choose another --out.")
    return record


def _refuse_others(where: str, record: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in FIXED:
        # What was written as a tuple is read as a list.
        asked = json.loads(json.dumps(wanted[key]))
        if record[key] != asked:
            raise UsageError(
                f"{where}: this response was sampled with another {key}: {_short(record[key])}, now {_short(asked)}",
                hint="Choose another --out.",
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-150:]}"

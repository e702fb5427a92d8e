"""Files of rows, batch by batch, so that memory does not grow with the rows: jsonl, csv, parquet; json as one list."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import UsageError

BATCH_ROWS = 8192
KINDS = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one file as they stand there, unchecked; lists of equal length."""

    place: str
    """Where a row stands, with {} for its number."""
    numbers: Sequence[int]
    problems: Sequence[Any]
    answers: Sequence[Any]

    def where(self, index: int) -> str:
        """The place of the batch's row `index`, for messages."""
        return self.place.format(self.numbers[index])


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """The columns that are read; a dot reaches into a column, unless a column has that very name."""

    problem: str
    answer: str


def read_batches(path: Path, columns: ColumnPair, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[Batch]:
    """Every row of a file, in order; with `wanted` [rows of the file] only those it marks.

    Raises:
        UsageError: unknown kind of file, unreadable row, or a missing column.
    """
    if path.suffix not in KINDS:
        raise UsageError(f"{path}: kind of file {path.suffix or 'without ending'!r}: want {', '.join(KINDS)}")
    if path.suffix == ".parquet":
        yield from _parquet_batches(path, columns, wanted)
        return
    place, records = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv}[path.suffix](path)
    numbers: list[int] = []
    problems: list[Any] = []
    answers: list[Any] = []
    for row, (number, record) in enumerate(records):
        if wanted is not None and not wanted[row]:
            continue
        problem, answer = _cells(place.format(number), record, columns)
        numbers.append(number)
        problems.append(problem)
        answers.append(answer)
        if len(numbers) == BATCH_ROWS:
            yield Batch(place, numbers, problems, answers)
            numbers, problems, answers = [], [], []
    if numbers:
        yield Batch(place, numbers, problems, answers)


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Every row of a file as (place, its columns), for files of which more than two columns matter.

    Raises:
        UsageError: unknown kind of file, or an unreadable row.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    if path.suffix not in KINDS:
        raise UsageError(f"{path}: kind of file {path.suffix or 'without ending'!r}: want {', '.join(KINDS)}")
    if path.suffix == ".parquet":
        for number, record in enumerate(_parquet_records(path), start=1):
            yield f"{path}: row {number}", record
        return
    place, records = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv}[path.suffix](path)
    for number, record in records:
        yield place.format(number), record


def _parquet_records(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise UsageError(f"{path}: not a readable parquet file: {error}") from error


def _cells(where: str, record: Any, columns: ColumnPair) -> tuple[Any, Any]:
    if not isinstance(record, dict):
        raise UsageError(f"{where}: want an object with columns, got {type(record).__name__}")
    cells = []
    for key, column in (("problem_column", columns.problem), ("answer_column", columns.answer)):
        value: Any = record
        for part in [column] if column in record else column.split("."):
            if not isinstance(value, dict) or part not in value:
                raise _no_column(where, key, column, list(record))
            value = value[part]
        cells.append(value)
    return cells[0], cells[1]


def _no_column(where: str, key: str, column: str, columns: Sequence[str]) -> UsageError:
    names = ", ".join(str(name) for name in columns)
    return UsageError(f"{where}: no column {column!r}; columns: {names}", hint=f"set dataset.{key}")


def _read_jsonl(path: Path) -> tuple[str, Iterator[tuple[int, Any]]]:
    def records() -> Iterator[tuple[int, Any]]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parse(f"{path}:{number}", line)

    return f"{_escaped(path)}:{{}}", records()


def _parse(where: str, data: bytes) -> Any:
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=partial(_unique, where))
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is valid JSON and no text
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON: {error}") from error
    return value


def _unique(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"{where}: column {repeated[0]!r} is there twice")
    return dict(pairs)


def _read_json(path: Path) -> tuple[str, Iterator[tuple[int, Any]]]:
    records = _parse(str(path), path.read_bytes())
    if not isinstance(records, list):
        raise UsageError(f"{path}: want a list of objects, got {type(records).__name__}")
    return f"{_escaped(path)}: item {{}}", iter(enumerate(records, start=1))


def _read_csv(path: Path) -> tuple[str, Iterator[tuple[int, Any]]]:
    def records() -> Iterator[tuple[int, Any]]:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            try:
                _unique(f"{path}:1", [(name, None) for name in reader.fieldnames or ()])
                for record in reader:
                    if None in record or None in record.values():
                        want = len(reader.fieldnames or ())
                        raise UsageError(f"{path}:{reader.line_num}: want {want} fields as in the header line")
                    yield reader.line_num, record
            except (csv.Error, UnicodeDecodeError) as error:
                raise UsageError(f"{path}:{reader.line_num + 1}: not valid CSV: {error}") from error

    return f"{_escaped(path)}:{{}}", records()


def _escaped(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")


def _parquet_batches(path: Path, columns: ColumnPair, wanted: npt.NDArray[np.bool_] | None) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            tops = [
                _top_column(path, schema, key, column)
                for key, column in (("problem_column", columns.problem), ("answer_column", columns.answer))
            ]
            first = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=sorted(set(tops)), use_threads=False):
                numbers = np.arange(first + 1, first + 1 + len(batch))
                if wanted is not None:
                    mask = wanted[first : first + len(batch)]
                    numbers, batch = numbers[mask], batch.filter(pa.array(mask))
                first = first + (len(mask) if wanted is not None else len(batch))
                if len(batch):
                    problems, answers = (
                        _cell_array(batch, top, column).to_pylist()
                        for top, column in zip(tops, (columns.problem, columns.answer), strict=True)
                    )
                    yield Batch(f"{_escaped(path)}: row {{}}", numbers.tolist(), problems, answers)
    except pa.ArrowException as error:
        raise UsageError(f"{path}: not a readable parquet file: {error}") from error


def _top_column(path: Path, schema: Any, key: str, column: str) -> str:
    """The top-level column that holds `column`; every part of the way has to be there."""
    import pyarrow as pa

    if column in schema.names:
        return column
    top, *rest = column.split(".")
    kind: Any = schema.field(top).type if top in schema.names else None
    for part in rest:
        inside = kind is not None and pa.types.is_struct(kind) and kind.get_field_index(part) >= 0
        kind = kind.field(part).type if inside else None
    if kind is None:
        raise _no_column(f"{path}: row 1", key, column, schema.names)
    return top


def _cell_array(batch: Any, top: str, column: str) -> Any:
    import pyarrow.compute

    array = batch.column(top)
    return array if top == column else pyarrow.compute.struct_field(array, column.split(".")[1:])

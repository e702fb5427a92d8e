"""Rows of a dataset before they are cleaned: read from a file, or generated."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """One valid row: where it stands, its problem, and its ground truth as text.

    `rewritten` is the original of an answer that was not text, e.g. the float 27.0 of "27"; None for text.
    """

    where: str
    problem: str
    answer: str
    rewritten: str | None = None


def sum_rows(digits: int, terms: int, problems: int | str) -> list[Row]:
    """Sums of `terms` numbers of `digits` digits, no leading zeros: all of them in order, or `problems` different ones.

    >>> rows = sum_rows(digits=2, terms=2, problems="all")
    >>> len(rows), rows[0].problem, rows[0].answer
    (8100, 'What is 10 + 10?', '20')

    Raises:
        UsageError: more different sums asked for than exist, or "all" of more than a million.
    """
    numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    count = len(numbers) ** terms
    if problems == "all" and count > 1_000_000:
        raise UsageError(f"card: problems: all would be {count} sums; give a number of at most 1000000")
    if isinstance(problems, int) and problems > count:
        raise UsageError(f"card: problems: got {problems}, there are only {count} different sums")
    if isinstance(problems, int):
        chosen = sorted(random.Random(0).sample(range(count), problems))
        draws = [[numbers[index // len(numbers) ** place % len(numbers)] for place in range(terms)] for index in chosen]
    else:
        draws = [list(values) for values in product(numbers, repeat=terms)]
    return [
        Row(f"sum {number}", f"What is {' + '.join(map(str, values))}?", str(sum(values)))
        for number, values in enumerate(draws, start=1)
    ]


def read_rows(path: Path, problem_column: str, answer_column: str) -> list[Row]:
    """Every row of a jsonl, json (a list of objects), csv or parquet file, checked; the first bad row is an error.

    Raises:
        UsageError: unknown kind of file, unreadable row, no rows, missing column, empty problem, or an answer that is
            neither text nor a finite number.
    """
    readers = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise UsageError(f"{path}: kind of file {path.suffix or 'without ending'!r}: want {', '.join(readers)}")
    rows = [_checked(where, record, problem_column, answer_column) for where, record in readers[path.suffix](path)]
    if not rows:
        raise UsageError(f"{path}: the file holds no rows")
    return rows


def _checked(where: str, record: Any, problem_column: str, answer_column: str) -> Row:
    if not isinstance(record, dict):
        raise UsageError(f"{where}: want an object with columns, got {type(record).__name__}")
    for key, column in (("problem_column", problem_column), ("answer_column", answer_column)):
        if column not in record:
            columns = ", ".join(str(name) for name in record)
            raise UsageError(f"{where}: no column {column!r}; columns: {columns}", hint=f"set dataset.{key}")
    problem, answer = record[problem_column], record[answer_column]
    if not isinstance(problem, str) or not problem.strip():
        raise UsageError(f"{where}: {problem_column}: want a non-empty text, got {problem!r}")
    if isinstance(answer, str) and answer.strip():
        return Row(where, problem, answer)
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        raise UsageError(f"{where}: {answer_column}: want a non-empty text or a number, got {answer!r}")
    # The scorer compares texts, so the float 27.0 has to become "27".
    text = str(int(answer)) if answer == int(answer) else repr(answer)
    return Row(where, problem, text, rewritten=f"{type(answer).__name__} {answer!r}")


def _read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}:{number}", _parse(f"{path}:{number}", line)


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


def _read_json(path: Path) -> Iterator[tuple[str, Any]]:
    records = _parse(str(path), path.read_bytes())
    if not isinstance(records, list):
        raise UsageError(f"{path}: want a list of objects, got {type(records).__name__}")
    for number, record in enumerate(records, start=1):
        yield f"{path}: item {number}", record


def _read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            _unique(f"{path}:1", [(name, None) for name in reader.fieldnames or ()])
            for record in reader:
                where = f"{path}:{reader.line_num}"
                if None in record or None in record.values():
                    raise UsageError(f"{where}: want {len(reader.fieldnames or ())} fields as in the header line")
                yield where, record
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{path}:{reader.line_num + 1}: not valid CSV: {error}") from error


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path}: not a readable parquet file: {error}") from error
    for number, record in enumerate(table.to_pylist(), start=1):
        yield f"{path}: row {number}", record

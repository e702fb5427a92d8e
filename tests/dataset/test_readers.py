import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from dapo_cli.dataset import readers
from dapo_cli.dataset.readers import Batch, ColumnPair, read_batches
from dapo_cli.errors import UsageError

QA = ColumnPair("q", "a")

RECORDS: list[dict[str, Any]] = [{"q": "What is 3 + 4?", "a": "7"}, {"q": "A {b}, \\frac{1}{2}\nsecond line", "a": "x"}]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".csv":
        lines = [",".join(records[0]), *(",".join(f'"{value}"' for value in record.values()) for record in records)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(records), path)
    return path


def cells(batches: Iterator[Batch]) -> list[tuple[Any, Any]]:
    return [pair for batch in batches for pair in zip(batch.problems, batch.answers, strict=True)]


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_every_kind_of_file_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, RECORDS)
    assert cells(read_batches(path, QA)) == [(record["q"], record["a"]) for record in RECORDS]
    assert cells(read_batches(path, QA, np.array([False, True]))) == [(RECORDS[1]["q"], RECORDS[1]["a"])]


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_missing_column_lists_the_columns_and_names_the_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'problem'; columns: q, a") as error:
        list(read_batches(write(tmp_path / name, RECORDS), ColumnPair("problem", "a")))
    assert error.value.hint == "set dataset.problem_column"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("d.jsonl", '{"q": "?", "a": "1"}\n\n{"q": \n', r"d\.jsonl:3: not valid JSON"),
        ("d.jsonl", '["q"]\n', r"d\.jsonl:1: want an object with columns, got list"),
        ("d.json", '{"q": "?"}', r"d\.json: want a list of objects, got dict"),
        ("d.json", "[1]", r"d\.json: item 1: want an object"),
        ("d.csv", 'q,a\n"?",1\n"?"\n', r"d\.csv:3: want 2 fields"),
        ("d.csv", 'q,a\n"?",1,2\n', r"d\.csv:2: want 2 fields"),
        ("d.csv", 'q,a\n"?"x,1\n', r"d\.csv:2: not valid CSV"),
        ("d.parquet", "PAR1 not", r"d\.parquet: not a readable parquet file"),
        ("d.txt", "x", r"d\.txt: kind of file '\.txt'"),
    ],
)
def test_unreadable_file_is_refused_with_its_place(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=complaint):
        list(read_batches(tmp_path / name, QA))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("problem,answer,answer\nx,1,2\n")
    (tmp_path / "a.jsonl").write_text('{"problem": "x", "answer": 1, "answer": 2}\n')
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(UsageError, match=r":1: column 'answer' is there twice"):
            list(read_batches(tmp_path / name, ColumnPair("problem", "answer")))


def test_json_that_is_no_text_is_refused_with_its_line(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"problem": "x \\ud800", "answer": 1}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:1: not valid JSON"):
        list(read_batches(file, ColumnPair("problem", "answer")))


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.parquet"])
def test_dots_reach_into_a_column_unless_one_is_named_so(name: str, tmp_path: Path) -> None:
    records = [{"q": "3?", "reward": {"truth": "7", "style": "x"}, "reward.other": "8"}]
    path = write(tmp_path / name, records)
    assert cells(read_batches(path, ColumnPair("q", "reward.truth"))) == [("3?", "7")]
    assert cells(read_batches(path, ColumnPair("q", "reward.other"))) == [("3?", "8")]
    with pytest.raises(UsageError, match=r"no column 'reward\.lie'; columns: q, reward, reward\.other"):
        list(read_batches(path, ColumnPair("q", "reward.lie")))


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_a_row_keeps_its_place_in_every_batch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BATCH_ROWS", 4)
    path = write(tmp_path / name, [{"q": f"{number}?", "a": str(number)} for number in range(11)])
    wanted = np.array([number % 3 == 0 for number in range(11)])
    batches = list(read_batches(path, QA, wanted))
    found = {batch.problems[index]: batch.where(index) for batch in batches for index in range(len(batch.numbers))}
    first = {".jsonl": "d.jsonl:1", ".json": "d.json: item 1", ".csv": "d.csv:2", ".parquet": "d.parquet: row 1"}
    assert list(found) == ["0?", "3?", "6?", "9?"]
    assert found["0?"].endswith(first[path.suffix])
    assert found["9?"].endswith(str(11 if path.suffix == ".csv" else 10))

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dapo_cli.dataset.rows import read_rows, sum_rows
from dapo_cli.errors import UsageError

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


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_every_kind_of_file_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / name, RECORDS), "q", "a")
    assert [(row.problem, row.answer, row.rewritten) for row in rows] == [
        (record["q"], record["a"], None) for record in RECORDS
    ]


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_missing_column_lists_the_columns_and_names_the_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'problem'; columns: q, a") as error:
        read_rows(write(tmp_path / name, RECORDS), "problem", "a")
    assert error.value.hint == "set dataset.problem_column"


@pytest.mark.parametrize(
    ("given", "text", "rewritten"),
    [
        (27.0, "27", "float 27.0"),
        (-3, "-3", "int -3"),
        (2.5, "2.5", "float 2.5"),
        ("27.0", "27.0", None),  # text stays as given
        (12345678901234567890123, "12345678901234567890123", "int 12345678901234567890123"),
    ],
)
def test_numbers_become_text(given: Any, text: str, rewritten: str | None, tmp_path: Path) -> None:
    (row,) = read_rows(write(tmp_path / "d.jsonl", [{"q": "?", "a": given}]), "q", "a")
    assert (row.answer, row.rewritten) == (text, rewritten)


@pytest.mark.parametrize("record", [{"q": " ", "a": "1"}, {"q": 3, "a": "1"}, {"q": None, "a": "1"}])
def test_empty_problem_is_refused_with_its_line(record: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"d\.jsonl:3: q: want a non-empty text"):
        read_rows(write(tmp_path / "d.jsonl", [*RECORDS, record]), "q", "a")


@pytest.mark.parametrize("answer", ["", "  ", None, True, [1], float("nan"), float("inf")])
def test_bad_answer_is_refused_with_its_line(answer: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"d\.jsonl:1: a: want a non-empty text or a number"):
        read_rows(write(tmp_path / "d.jsonl", [{"q": "?", "a": answer}]), "q", "a")


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
        ("d.jsonl", "\n", r"d\.jsonl: the file holds no rows"),
        ("d.csv", "q,a\n", r"d\.csv: the file holds no rows"),
        ("d.txt", "x", r"d\.txt: kind of file '\.txt'"),
    ],
)
def test_unreadable_file_is_refused_with_its_place(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read_rows(tmp_path / name, "q", "a")


def test_sums_are_right_and_complete() -> None:
    rows = sum_rows(digits=1, terms=3, problems="all")
    assert len({row.problem for row in rows}) == 1000  # 10 x 10 x 10
    for row in rows:
        assert sum(map(int, row.problem[len("What is ") : -1].split(" + "))) == int(row.answer)


def test_some_sums_are_a_fixed_choice_of_all() -> None:
    some = sum_rows(digits=2, terms=2, problems=50)
    every = {(row.problem, row.answer) for row in sum_rows(digits=2, terms=2, problems="all")}
    assert some == sum_rows(digits=2, terms=2, problems=50)
    assert len({row.problem for row in some}) == 50
    assert {(row.problem, row.answer) for row in some} <= every


def test_impossible_numbers_of_sums_are_refused() -> None:
    with pytest.raises(UsageError, match="only 100 different sums"):
        sum_rows(digits=1, terms=2, problems=101)
    with pytest.raises(UsageError, match="would be 729000000 sums"):
        sum_rows(digits=3, terms=3, problems="all")


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("problem,answer,answer\nx,1,2\n")
    (tmp_path / "a.jsonl").write_text('{"problem": "x", "answer": 1, "answer": 2}\n')
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(UsageError, match=r":1: column 'answer' is there twice"):
            read_rows(tmp_path / name, "problem", "answer")


def test_json_that_is_no_text_is_refused_with_its_line(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"problem": "x \\ud800", "answer": 1}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:1: not valid JSON"):
        read_rows(file, "problem", "answer")

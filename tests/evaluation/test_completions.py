import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.completions import read_completions
from dapo_cli.evaluation.rescoring import CompletionsFile, evaluate_completions
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.types import Problem

ROWS = [
    {"question": "1 + 1?", "gt": "2", "response": ["Answer: 2", "Answer: 3", "hm"], "score": [True, True, False]},
    {"question": "1 + 2?", "gt": "3", "response": ["Answer: 3", "Answer: 3", "Answer: 4"], "score": [True, True, True]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def single_rows() -> list[dict[str, Any]]:
    """The same with a row per response, problems mixed."""
    return [
        {"question": row["question"], "gt": row["gt"], "response": row["response"][n], "score": row["score"][n]}
        for n in range(3)
        for row in ROWS
    ]


def scored(folder: Path, path: Path, *overrides: str, columns: dict[str, str] | None = None) -> Any:
    notes: list[str] = []
    loaded = load_recipe("demo", list(overrides))
    file = CompletionsFile(path, columns or {}, None)
    result, out = evaluate_completions(loaded, file, folder / "out", notes.append, lambda *_: None)
    return result, notes, out


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("rows", [ROWS, single_rows()], ids=["lists", "single"])
def test_both_layouts_are_scored_alike_and_disagreements_are_listed(
    name: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    result, notes, out = scored(tmp_path, write(tmp_path / name, rows))
    assert result.num_correct.tolist() == [1, 2]
    assert result.problems[0].no_answer == 1
    assert result.response_length_mean is None  # nobody counted
    # the file says 5 of 6, we say 3 of 6: "Answer: 3" to 1 + 1 and "Answer: 4" to 1 + 2
    assert (
        "6 verdicts in the file, 4 confirmed by dapo: the file's own score is 83.33, this one 50.00; 2 right"
        in notes[1]
    )
    found = [json.loads(line) for line in (out / "disagreements.jsonl").read_text().splitlines()]
    assert [(each["prediction"], each["ground_truth"], each["upstream"]) for each in found] == [
        ("3", "2", True),
        ("4", "3", True),
    ]
    assert "'3' against '2'" in found[0]["reason"]


def test_extracted_answers_stand_in_for_verdicts(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "gt": "2", "code": "Answer: 7", "pred": "2.0"}]
    _, notes, _ = scored(tmp_path, write(tmp_path / "a.jsonl", rows))
    assert "1 verdicts in the file, 0 confirmed" in notes[1]


def test_a_benchmark_brings_its_own_answers(tmp_path: Path) -> None:
    known = [Problem("p", "1 + 1?", (), "2", "b"), Problem("q", "1 + 2?", (), "3", "b")]
    known = [Problem(_id(p.text), p.text, (), p.ground_truth, "b") for p in known]
    rows = [
        {"prompt": [{"role": "user", "content": apply_template("dapo", "1 +  2?")}], "output": "Answer: 3"},
        {"prompt": [{"role": "user", "content": "1 + 1?"}], "output": "Answer: 2"},
    ]
    found = read_completions(write(tmp_path / "a.jsonl", rows), {}, known, None)
    assert [problem.ground_truth for problem in found.problems] == ["2", "3"]
    assert [own[0].text for own in found.completions] == ["Answer: 2", "Answer: 3"]
    with pytest.raises(UsageError, match="1 problems have no completion, first: '1 \\+ 2\\?'"):
        read_completions(write(tmp_path / "b.jsonl", rows[1:]), {}, known, None)
    with pytest.raises(UsageError, match="not a problem of the benchmark: '5 \\+ 5\\?'"):
        read_completions(write(tmp_path / "c.jsonl", [{"prompt": "5 + 5?", "output": "x"}]), {}, known, None)


def _id(text: str) -> str:
    from dapo_cli.dataset.identity import problem_id

    return problem_id(text)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([{"question": "a", "gt": "1"}], {}, "no column 'response' or .* for the response; columns: question, gt"),
        ([{"question": "a", "response": "b"}], {}, "no column 'answer' or .* for the answer"),
        (ROWS, {"response": "text"}, "no column 'text' for the response"),
        (ROWS, {"reply": "text"}, "--column reply: want one of problem, answer, response"),
        ([{"question": "a", "gt": "1", "response": 3}], {}, "response: want a text, got 3"),
        (
            [{"question": "a", "gt": "1", "response": "b", "finish_reason": "eos"}],
            {},
            "want stop or length, got 'eos'",
        ),
        ([*ROWS, {"question": "a", "gt": "1", "response": "b"}], {}, "between 1 and 3 completions"),
        ([{"question": "a", "gt": "1", "response": ["b"], "score": [1, 0]}], {}, "2 values for 1 responses"),
        ([], {}, "the file holds no rows"),
    ],
)
def test_what_cannot_be_read_is_named(
    rows: list[dict[str, Any]], columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        read_completions(write(tmp_path / "a.jsonl", rows), columns, None, None)


def test_some_of_each_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*ROWS, {"question": "a", "gt": "1", "response": "b"}])
    assert [len(own) for own in read_completions(path, {}, None, 1).completions] == [1, 1, 1]
    with pytest.raises(UsageError, match="--samples 2: a problem has only 1"):
        read_completions(path, {}, None, 2)


def test_an_empty_response_is_one_without_an_answer(tmp_path: Path) -> None:
    result, _, _ = scored(tmp_path, write(tmp_path / "a.jsonl", [{"question": "a", "gt": "1", "response": ""}]))
    assert (result.avg_at_n, result.no_answer_rate) == (0, 1)

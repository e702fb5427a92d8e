import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.errors import DapoError, UsageError, VerificationError
from dapo_cli.evaluation.benchmark import Benchmark, BenchmarkSource, load_benchmark
from dapo_cli.evaluation.benchmark_problems import answers_sha256, load_problems

ANSWERS = ["204", "073", "25"]
TEXTS = [f"Problem {number}: find $x$." for number in range(3)]


def benchmark(**source: Any) -> Benchmark:
    about = {"problems": 3, "answers_sha256": answers_sha256(ANSWERS), "integer_answers": True} | source
    card = load_benchmark("aime_2024")
    return card.model_copy(update={"name": "mine", "problems": BenchmarkSource(**about)})


def plain(path: Path, texts: list[str] = TEXTS, answers: list[Any] | None = None) -> Path:
    rows = zip(texts, answers or ANSWERS, strict=True)
    path.write_text("".join(json.dumps({"problem": text, "answer": answer}) + "\n" for text, answer in rows))
    return path


def dapo_layout(path: Path, repeats: int) -> Path:
    """Rows in the layout of the public AIME file: every problem `repeats` times, shuffled, with the template."""
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": apply_template("dapo", TEXTS[index % 3])}],
            "reward_model": {"ground_truth": ANSWERS[index % 3], "style": "rule-lighteval/MATH_v2"},
        }
        for index in range(3 * repeats)
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def load(path: Path, card: Benchmark | None = None) -> Any:
    return load_problems(card or benchmark(), {"mine": str(path)}, "{problem}!")


def test_repeated_and_plain_layouts_are_the_same_problems(tmp_path: Path) -> None:
    once = load(plain(tmp_path / "plain.jsonl"))
    many = load(dapo_layout(tmp_path / "dapo.parquet", 32))
    assert (once.rows, many.rows) == (3, 96)
    assert once.problems == many.problems
    assert sorted(problem.text for problem in once.problems) == TEXTS
    truths = {problem.text: problem.ground_truth for problem in once.problems}
    assert [truths[text] for text in TEXTS] == ["204", "73", "25"]
    assert once.rewritten == 1
    assert all(p.messages == ({"role": "user", "content": f"{p.text}!"},) for p in once.problems)


@pytest.mark.parametrize(
    ("texts", "answers", "complaint"),
    [
        (TEXTS[:2], ANSWERS[:2], "2 different problems, but mine has 3"),
        (TEXTS, ["204", "x+1", "25"], "1 answers of mine are not integers, first: 'x\\+1'"),
        (TEXTS, ["204", "74", "25"], "these are not the answers of mine"),
        ([*TEXTS, TEXTS[0]], [*ANSWERS, "204"], "there 1 times and others 2 times"),
        ([*TEXTS, TEXTS[0]], [*ANSWERS, "205"], "the answer is '205', an earlier row of the same problem says '204'"),
    ],
)
def test_what_is_not_the_benchmark_is_refused(
    texts: list[str], answers: list[str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(DapoError, match=complaint):
        load(plain(tmp_path / "b.jsonl", texts, answers))


def test_a_wrong_hash_is_a_failed_verification(tmp_path: Path) -> None:
    with pytest.raises(VerificationError):
        load(plain(tmp_path / "b.jsonl"), benchmark(answers_sha256="0" * 16))


def test_missing_columns_name_the_layouts(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"text": "x", "label": "1"}\n')
    with pytest.raises(UsageError, match="no column 'problem'; columns: text, label") as error:
        load(tmp_path / "b.jsonl")
    assert "prompt + reward_model.ground_truth, question + answer" in str(error.value.hint)
    with pytest.raises(UsageError, match=r"eval\.files\.mine: .*no\.jsonl: no such file"):
        load(tmp_path / "no.jsonl")


# The answers of AIME 2024 by their position in the public file; facts, not texts.
AIME_2024 = (
    "45 116 540 468 385 23 371 33 104 809 73 601 80 315 721 127 197 294 902 211 110 113 55 104 25 204 236 480 321 699"
)


def test_the_card_of_aime_2024_knows_its_answers() -> None:
    source = load_benchmark("aime_2024").source
    assert source is not None
    assert (source.problems, source.answers_sha256) == (30, answers_sha256(AIME_2024.split()))

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from small_recipe import small_recipe

from dapo_cli.dataset.load import load_prepared, open_prepared
from dapo_cli.dataset.prepare import BenchmarkWords, Surroundings, prepare
from dapo_cli.dataset.settings import prepare_command, prepared_folder
from dapo_cli.dataset.survey import words_hash
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import DatasetPart, Recipe


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_source(records: list[dict[str, Any]], name: str = "mine.jsonl") -> Path:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return Path(name)


def own_recipe(**dataset: Any) -> Recipe:
    return small_recipe(**({"name": "mine", "source": "mine.jsonl", "heldout_problems": 1} | dataset))


RECORDS = [
    {"problem": "What is {1} + 1?", "answer": "2"},
    {"problem": "What is 1 + 2?", "answer": 3.0},
    {"problem": "What is 1 + 1?", "answer": "2"},
    {"problem": "What is  1 + 1?", "answer": "2"},
    {"problem": "What is 2 + 2?", "answer": "4"},
    {"problem": "What is 2 + 2?", "answer": "5"},
]


def test_two_preparations_give_the_same_bytes() -> None:
    first = prepare(small_recipe(name="one_digit_sums"), out=Path("a"))
    second = prepare(small_recipe(name="one_digit_sums"), out=Path("b"))
    names = ["data_card.json", "data_card.md", "heldout.parquet", "train.parquet"]
    assert sorted(path.name for path in first.folder.iterdir()) == names
    for name in names:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["a", "b"]  # nothing temporary is left


def test_the_data_card_accounts_for_every_row() -> None:
    write_source(RECORDS)
    card = prepare(own_recipe()).card
    assert card.counts.model_dump() == {
        "rows_read": 6,
        "carried_a_template": 0,
        "numbers_written_as_text": 1,
        "conflicting_rows_dropped": 2,
        "overlapping_rows_dropped": 0,
        "too_long_rows_dropped": 0,
        "duplicates_dropped": 1,
        "duplicates_kept": 0,
        "train": 2,  # 3 problems are left, 1 of them held out
        "heldout": 1,
    }
    found = {finding.what: finding.examples for finding in card.findings}
    assert found["distinct rows whose number was written as text"] == ("mine.jsonl:2: float 3.0 became '3'",)
    assert found["rows that repeat an earlier problem and answer"] == ("mine.jsonl:4: What is 1 + 1?",)
    assert found["problems whose rows disagree about the answer"] == (
        "What is 2 + 2?: '4' (mine.jsonl:5), '5' (mine.jsonl:6)",
    )
    assert {form: count for form, count in card.answers.items() if count} == {"integer 0 to 999": 3}
    readable = (prepared_folder(own_recipe()) / "data_card.md").read_text()
    for shown in ("| read | 6 |", "'5' (mine.jsonl:6)", "float 3.0 became '3'", "Remember to put your answer"):
        assert shown in readable


def test_rows_have_the_layout_verl_reads() -> None:
    write_source(RECORDS)
    folder = prepare(own_recipe(heldout_problems=0), out=Path("o")).folder
    row = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()[0]
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert row["prompt"][0]["role"] == "user"
    assert row["prompt"][0]["content"].startswith("Solve the following math problem step by step.")
    assert "\n\nWhat is {1} + 1?\n\n" in row["prompt"][0]["content"]
    assert row["reward_model"] == {"ground_truth": "2", "style": "rule"}
    assert (row["extra_info"]["index"], row["extra_info"]["problem"]) == (0, "What is {1} + 1?")
    assert row["extra_info"]["split"] == "train"
    assert len(row["extra_info"]["problem_id"]) == 16


def test_loading_gives_back_what_was_prepared() -> None:
    recipe = small_recipe(name="toy_sums", template="Q: {problem}")
    prepare(recipe)
    prepared = open_prepared(recipe, "demo")
    assert (len(prepared.train), len(prepared.heldout)) == (7900, 200)  # 90 x 90 pairs
    problem = prepared.train[0]
    assert problem.text == "What is 10 + 10?"
    assert problem.messages == ({"role": "user", "content": "Q: What is 10 + 10?"},)
    assert (problem.ground_truth, problem.data_source) == ("20", "math_dapo")


def test_what_changes_the_files_changes_the_folder_and_nothing_else_does() -> None:
    base = prepared_folder(own_recipe())
    assert base.parts[:2] == ("runs", "_data")
    assert base == prepared_folder(own_recipe(shuffle_seed=9, source="elsewhere.csv", allow_benchmark_overlap=True))
    others = [
        prepared_folder(own_recipe(problem_column="q")),
        prepared_folder(own_recipe(answer_column="a")),
        prepared_folder(own_recipe(heldout_problems=2)),
        prepared_folder(small_recipe("problem", name="mine", source="mine.jsonl", heldout_problems=1)),
    ]
    assert len({base, *others}) == 5
    assert prepared_folder(small_recipe(name="toy_sums")) == prepared_folder(
        small_recipe(name="toy_sums", heldout_problems=200)
    )


def test_columns_of_the_recipe_win_over_the_card() -> None:
    write_source([{"q": f"{number}?", "a": str(number)} for number in range(5)])
    recipe = small_recipe(
        name="gsm8k_split", source="mine.jsonl", problem_column="q", answer_column="a", heldout_problems=2
    )
    assert len(open_prepared_after_preparing(recipe)) == 3


def open_prepared_after_preparing(recipe: Recipe) -> tuple[object, ...]:
    prepare(recipe)
    return open_prepared(recipe, "r").train


def test_a_second_preparation_is_noticed_and_another_source_refused() -> None:
    source = write_source(RECORDS)
    assert not prepare(own_recipe()).already_prepared
    again = prepare(own_recipe())
    assert again.already_prepared
    assert again.card.counts.rows_read == 6
    write_source(RECORDS[:3], "other.jsonl")
    with pytest.raises(UsageError, match=r"prepared from mine\.jsonl with sha256") as error:
        prepare(own_recipe(), source="other.jsonl")
    assert "remove runs/_data/mine-" in str(error.value.hint)
    with pytest.raises(UsageError, match="prepared from"):
        open_prepared(own_recipe(source="other.jsonl"), "r")
    source.unlink()
    assert len(open_prepared(own_recipe(), "r").train) == 2  # the prepared files are enough


def test_a_folder_of_something_else_is_not_touched() -> None:
    Path("o").mkdir()
    Path("o/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not prepared data"):
        prepare(small_recipe(name="one_digit_sums"), out=Path("o"))
    assert Path("o/notes.txt").read_text() == "mine"
    prepare(small_recipe(name="one_digit_sums"), out=Path("p"))
    with pytest.raises(UsageError, match="prepared with other settings"):
        prepare(small_recipe(name="one_digit_sums", heldout_problems=3), out=Path("p"))


def test_a_failed_preparation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("dapo_cli.dataset.prepare.as_markdown", full_disk)
    with pytest.raises(OSError, match="no space"):
        prepare(small_recipe(name="one_digit_sums"))
    assert list(Path("runs/_data").iterdir()) == []


@pytest.mark.parametrize(
    ("dataset", "complaint"),
    [
        ({"name": "gsm8k_split"}, "gsm8k_split ships no problems"),
        ({"name": "gsm8k_split", "source": "no.jsonl"}, r"no\.jsonl: source: no such file"),
        ({"name": "toy_sums", "source": "mine.jsonl"}, "toy_sums is generated and reads no file"),
        ({"name": "toy_sum"}, "no card named 'toy_sum'; cards: dapo_math_17k, .*, toy_sums"),
        ({"name": "mine", "source": "mine.jsonl"}, r"dataset\.heldout_problems: has to be set"),
        ({"name": "one_digit_sums", "heldout_problems": 100}, "only 100 problems of one_digit_sums are left"),
    ],
)
def test_what_cannot_be_prepared_is_refused(dataset: dict[str, Any], complaint: str) -> None:
    write_source(RECORDS)
    with pytest.raises(UsageError, match=complaint):
        prepare(small_recipe(**dataset))


def test_unprepared_data_names_the_command() -> None:
    with pytest.raises(UsageError, match="not prepared") as error:
        open_prepared(small_recipe(name="toy_sums"), "recipes/x.yaml")
    assert error.value.hint == "run: dapo prepare-data recipes/x.yaml"
    assert prepare_command(small_recipe(name="gsm8k_split"), "r.yaml") == "dapo prepare-data r.yaml --source FILE"
    assert prepare_command(own_recipe(), "r.yaml") == "dapo prepare-data r.yaml"


@pytest.mark.parametrize("name", ["train.parquet", "heldout.parquet"])
def test_changed_or_missing_files_fail_verification(name: str) -> None:
    folder = prepare(small_recipe(name="one_digit_sums")).folder
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + b"x")
    with pytest.raises(VerificationError, match=f"{name}: changed since it was written"):
        load_prepared(folder)
    (folder / name).unlink()
    with pytest.raises(VerificationError, match=f"{name}: missing"):
        load_prepared(folder)


def test_damaged_data_card_fails_verification() -> None:
    folder = prepare(small_recipe(name="one_digit_sums")).folder
    (folder / "data_card.json").write_text("{}")
    with pytest.raises(VerificationError, match="not a data card of this version"):
        load_prepared(folder)


def test_overlap_is_found_at_loading_even_when_the_hashes_agree() -> None:
    folder = prepare(small_recipe(name="one_digit_sums")).folder
    card = json.loads((folder / "data_card.json").read_text())
    (folder / "heldout.parquet").write_bytes((folder / "train.parquet").read_bytes())
    card["files"][1] = card["files"][0] | {"name": "heldout.parquet"}
    (folder / "data_card.json").write_text(json.dumps(card))
    with pytest.raises(VerificationError, match="80 held-out problems are also in the training data"):
        load_prepared(folder)


def mixture(**dataset: Any) -> Recipe:
    parts = [
        {"name": "mine", "source": "mine.jsonl", "heldout_problems": 1, "weight": 1.0, "scorer": ("boxed", "integer")},
        {"name": "other", "source": "other.jsonl", "problem_column": "q", "heldout_problems": 1, "weight": 2.0},
    ]
    return small_recipe(name="mix", parts=tuple(DatasetPart(**part) for part in parts), **dataset)


def test_several_datasets_are_prepared_as_one_without_shared_problems() -> None:
    write_source(RECORDS)
    write_source([{"q": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 6)], "other.jsonl")
    card = prepare(mixture()).card
    mine, other = card.parts
    assert (mine.counts.train, mine.counts.heldout) == (2, 1)
    # 1 + 1 is in the first already; 2 + 2 is there with three answers, so that both lose it
    assert (other.counts.duplicates_dropped, other.counts.conflicting_rows_dropped) == (1, 1)
    assert (other.counts.train, other.counts.heldout) == (2, 1)
    assert card.counts.train == 4
    prepared = open_prepared(mixture(), "r")
    assert {problem.dataset: problem.scorer for problem in prepared.train} == {
        "mine": ("boxed", "integer"),
        "other": None,
    }
    assert [problem.dataset for problem in prepared.heldout] == ["mine", "other"]
    with pytest.raises(UsageError, match="--source: the recipe has several datasets"):
        prepare(mixture(), source="mine.jsonl")


def test_kept_duplicates_are_the_rows_of_the_source_in_order() -> None:
    rows = [{"problem": f"{n}?", "answer": str(n % 3)} for n in (3, 1, 3, 2, 1, 3)]
    write_source(rows)
    recipe = own_recipe(duplicates="keep", conflicts="keep", heldout_problems=0)
    folder = prepare(recipe).folder
    table = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()
    assert [row["extra_info"]["problem"] for row in table] == [row["problem"] for row in rows]
    assert [row["extra_info"]["source_row"] for row in table] == list(range(6))
    train = open_prepared(recipe, "r").train
    assert [problem.text for problem in train] == [row["problem"] for row in rows]
    assert len({id(problem) for problem in train}) == 3  # equal rows share one object


def test_a_preparation_says_what_it_could_not_look_at_and_drops_what_it_was_told_to() -> None:
    write_source(RECORDS[:3])
    around = Surroundings(
        len,
        "a tokenizer",
        {
            "near": BenchmarkWords(frozenset({words_hash("What is 1+2?")}), "a file"),
            "far": BenchmarkWords(None, "no way"),
        },
    )
    recipe = own_recipe(heldout_problems=0, overlapping_problems="drop")
    card = prepare(recipe, look_around=lambda: around).card
    near, far = card.overlaps
    assert (near.checked, near.asked, far.checked, far.reason) == (True, 1, False, "no way")
    assert card.counts.overlapping_rows_dropped == 1
    assert (card.lengths.tokenizer, card.lengths.longest) == ("a tokenizer", len(RECORDS[0]["problem"]))
    assert "far: not compared: no way" in (prepared_folder(recipe) / "data_card.md").read_text()


def test_a_published_size_that_is_not_met_is_noted() -> None:
    write_source([{"question": f"{n}?", "answer": f"so\n#### {n}"} for n in range(3)])
    card = prepare(small_recipe(name="gsm8k", source="mine.jsonl", heldout_problems=1)).card
    assert card.notes == ("gsm8k: 3 rows; as published it has 7473",)
    assert sum(card.answers.values()) == 3

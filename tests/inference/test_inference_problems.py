"""What can be asked, and which options contradict themselves."""

import io
import json

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.inference.options import InferenceOptions, check_options
from dapo_cli.inference.problems import EXAMPLE_ANSWERS, example_problems, file_problems, typed_problem
from dapo_cli.inference.setup import response_limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": "1 + 1?", "example": True}, "PROBLEM and --example exclude each other"),
        ({"model": "a", "run": "b"}, "--model and --run exclude each other"),
        ({"recipe": "a", "run": "b"}, "--recipe and --run exclude each other"),
        ({"example": True, "gold": "1"}, "--gold and --example exclude each other"),
        ({"problem": "1", "problem_column": "x"}, "--problem-column needs --file"),
        ({"problem": "1", "samples": 0}, "--samples: want 1 or more, got 0"),
        ({"problem": "1", "max_response_tokens": 0}, "--max-response-tokens: want 1 or more"),
        ({"problem": "1", "temperature": 0.0}, "--temperature: want a number above 0, got 0"),
        ({"problem": "1", "top_p": 1.5}, "--top-p: want above 0 and at most 1, got 1.5"),
        ({"problem": "1", "overrides": ("train.steps=3",)}, "dapo infer does not read train.steps"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        check_options(InferenceOptions(**options))


def test_a_key_that_has_an_option_names_it():
    with pytest.raises(UsageError) as caught:
        check_options(InferenceOptions(problem="1", overrides=("rollout.temperature=0.5",)))
    assert caught.value.hint == "use --temperature"


def test_a_problem_comes_from_the_command_line_or_from_standard_input():
    for options, stdin in (({"problem": " 1 + 1? "}, ""), ({"problem": "-"}, "1 + 1?\n"), ({}, "1 + 1?\n")):
        problem = typed_problem(InferenceOptions(**options, gold="2"), io.StringIO(stdin), "dapo", print)
        assert (problem.text, problem.ground_truth) == ("1 + 1?", "2")
        assert problem.messages[0]["content"].startswith("Solve the following math problem step by step.")
    with pytest.raises(UsageError, match="no problem"):
        typed_problem(InferenceOptions(), io.StringIO(" \n"), "dapo", print)


def test_a_prompt_template_is_not_put_on_twice():
    notes = []
    once = typed_problem(InferenceOptions(problem="1 + 1?"), io.StringIO(), "dapo", notes.append)
    again = typed_problem(InferenceOptions(problem=once.messages[0]["content"]), io.StringIO(), "dapo", notes.append)
    assert again == once
    assert any("it was taken off" in note for note in notes)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_columns_are_found_named_or_missing(tmp_path):
    usual = write(tmp_path / "a.jsonl", [{"question": "1 + 1?", "answer": 2}])
    assert [p.ground_truth for p in file_problems(usual, InferenceOptions(file=usual), "dapo", print)] == ["2"]
    own = write(tmp_path / "b.jsonl", [{"task": "1 + 1?", "truth": "2"}, {"task": "1 + 1?", "truth": "2"}])
    options = InferenceOptions(file=own, problem_column="task", answer_column="truth")
    notes = []
    assert len(file_problems(own, options, "dapo", notes.append)) == 1
    assert any("2 rows hold 1 different problems" in note for note in notes)
    with pytest.raises(UsageError, match="no column") as caught:
        file_problems(own, InferenceOptions(file=own), "dapo", print)
    assert "--problem-column NAME" in caught.value.hint
    without = write(tmp_path / "c.jsonl", [{"problem": "1 + 1?"}])
    assert file_problems(without, InferenceOptions(file=without), "dapo", print)[0].ground_truth == ""


def test_two_answers_to_one_problem_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"problem": "1 + 1?", "answer": "2"}, {"problem": "1 + 1?", "answer": "3"}])
    with pytest.raises(UsageError, match=r"a\.jsonl:2: the answer is '3', an earlier row of the problem says '2'"):
        file_problems(path, InferenceOptions(file=path), "dapo", print)
    with pytest.raises(UsageError, match="no such file"):
        file_problems(tmp_path / "none", InferenceOptions(), "dapo", print)


def test_the_example_is_found_in_a_benchmark_by_its_answers(tmp_path):
    rows = [{"problem": f"What is {answer} + 0?", "answer": str(answer)} for answer in (540, 1, 721, 204)]
    card = load_benchmark("aime_2024")
    card = card.model_copy(
        update={"problems": card.problems.model_copy(update={"problems": 4, "answers_sha256": None})}
    )
    files = {"aime_2024": str(write(tmp_path / "aime.jsonl", rows))}
    found = example_problems(card, files, "dapo")
    assert [problem.ground_truth for problem in found] == list(EXAMPLE_ANSWERS)
    assert found[0].text == "What is 540 + 0?"


def test_a_prompt_and_a_response_that_do_not_fit_the_model_are_refused():
    with pytest.raises(
        UsageError, match="a prompt of 500 tokens and a response of 100 do not fit the 512 positions"
    ) as c:
        response_limit(100, 500, 512, "toy", print)
    assert c.value.hint == "--max-response-tokens 12"
    assert response_limit(10, 500, 512, "toy", print) == 10
    assert response_limit(None, 500, None, "any", print) == 20480

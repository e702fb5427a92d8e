from typing import Any

import pytest

from dapo_cli.dataset.rows import answer_text, problem_text, sum_rows
from dapo_cli.errors import UsageError


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
def test_numbers_become_text(given: Any, text: str, rewritten: str | None) -> None:
    assert answer_text("f:1", "a", given) == (text, rewritten)


@pytest.mark.parametrize("cell", [" ", 3, None, [], [{"role": "user", "content": ""}], [{"role": "user"}]])
def test_a_problem_that_is_no_text_is_refused_with_its_place(cell: Any) -> None:
    with pytest.raises(UsageError, match=r"d\.jsonl:3: q: want a"):
        problem_text("d.jsonl:3", "q", cell)


def test_only_a_single_user_message_is_a_problem() -> None:
    assert problem_text("f:1", "prompt", [{"content": "2 + 2?", "role": "user"}]) == "2 + 2?"
    with pytest.raises(UsageError, match="got messages of system, user") as error:
        problem_text("f:1", "prompt", [{"role": "system", "content": "Be."}, {"role": "user", "content": "2?"}])
    assert "prompt.system" in str(error.value.hint)


@pytest.mark.parametrize("answer", ["", "  ", None, True, [1], float("nan"), float("inf")])
def test_bad_answer_is_refused_with_its_place(answer: Any) -> None:
    with pytest.raises(UsageError, match=r"d\.jsonl:1: a: want a non-empty text or a number"):
        answer_text("d.jsonl:1", "a", answer)


def test_the_answer_is_what_follows_the_last_mark() -> None:
    assert answer_text("f:1", "answer", "2 #### 3\n#### 1,007 ", "####") == ("1,007", None)
    for solution in ("seven", "so ####  "):
        with pytest.raises(UsageError, match="want an answer after '####'"):
            answer_text("f:1", "answer", solution, "####")


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

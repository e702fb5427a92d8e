"""Surveys of small files and what is selected from them, through the same two calls as a preparation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_recipe import small_recipe

from dapo_cli.dataset.near_duplicates import signature, similar_pairs
from dapo_cli.dataset.selection import CONFLICT, DUPLICATE, KEPT, OVERLAP, TOO_LONG, Selection, select
from dapo_cli.dataset.settings import resolve
from dapo_cli.dataset.sources import open_source, tables_of
from dapo_cli.dataset.survey import Survey, Surveyor, answer_key, language, words_hash


def selected(
    folder: Path, rows: Sequence[tuple[Any, Any]], words: Sequence[str] = (), limit: int | None = None, **dataset: Any
) -> tuple[Survey, Selection]:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"problem": text, "answer": answer}) + "\n" for text, answer in rows))
    settings = resolve(small_recipe(**({"name": "mine", "source": str(path), "heldout_problems": 0} | dataset)))
    tables = tables_of([open_source(part, None) for part in settings.parts])
    survey = Surveyor(settings, lambda text: len(text)).read(tables)
    benchmarks = {"b": frozenset(map(words_hash, words))}
    return survey, select(survey, settings, benchmarks, [table.part for table in tables], limit)


ROWS = [("a?", "1"), ("b?", "2"), ("a?", "1"), ("a ?", "1"), ("a?", "3"), ("c?", "4"), ("a?", 1.0)]


@pytest.mark.parametrize(
    ("policies", "fates"),
    [
        # a? says 1, 1, 3, 1: white space alone makes "a ?" another problem
        ({}, [CONFLICT, KEPT, CONFLICT, KEPT, CONFLICT, KEPT, CONFLICT]),
        ({"conflicts": "majority"}, [KEPT, KEPT, DUPLICATE, KEPT, CONFLICT, KEPT, DUPLICATE]),
        ({"conflicts": "keep"}, [KEPT, KEPT, DUPLICATE, KEPT, KEPT, KEPT, DUPLICATE]),
        ({"conflicts": "keep", "duplicates": "keep"}, [KEPT] * 7),
        ({"duplicates": "keep"}, [CONFLICT, KEPT, CONFLICT, KEPT, CONFLICT, KEPT, CONFLICT]),
    ],
)
def test_duplicates_and_conflicts_go_by_the_recipe(policies: dict[str, Any], fates: list[int], tmp_path: Path) -> None:
    survey, selection = selected(tmp_path, ROWS, **policies)
    assert selection.fate.tolist() == fates
    assert [survey.problems[p].shown for p in selection.conflicts] == ["a?"]


def test_a_tie_has_no_majority(tmp_path: Path) -> None:
    _, selection = selected(tmp_path, [("a?", "1"), ("a?", "2"), ("b?", "3")], conflicts="majority")
    assert selection.fate.tolist() == [CONFLICT, CONFLICT, KEPT]


@pytest.mark.parametrize(("policy", "fates"), [("keep", [KEPT, KEPT]), ("drop", [OVERLAP, KEPT])])
def test_problems_of_a_benchmark_are_found_and_dropped_if_asked(policy: str, fates: list[int], tmp_path: Path) -> None:
    rows = [("Find $x$: 12 + 3 = x.", "15"), ("Find y: 1 + 23 = y.", "24")]
    survey, selection = selected(tmp_path, rows, ["find X : 12+3=x"], overlapping_problems=policy)
    assert selection.fate.tolist() == fates
    assert [survey.problems[p].id for p in selection.overlaps["b"]] == [survey.problems[0].id]


def test_long_prompts_are_dropped_only_under_a_limit(tmp_path: Path) -> None:
    rows = [("a?", "1"), ("a much longer problem?", "2")]
    assert selected(tmp_path, rows)[1].fate.tolist() == [KEPT, KEPT]
    assert selected(tmp_path, rows, limit=10)[1].fate.tolist() == [KEPT, TOO_LONG]


def test_held_out_problems_are_asked_once_and_have_one_answer(tmp_path: Path) -> None:
    rows = [*ROWS, *ROWS]
    survey, selection = selected(
        tmp_path, rows, duplicates="keep", conflicts="keep", heldout_problems=2
    )  # the candidates are "b?", "a ?" and "c?"
    kept = [row for row in range(len(rows)) if selection.row_heldout[row] and selection.fate[row] == KEPT]
    ids = [survey.problems[survey.distinct[survey.distinct_of_row[row]].problem].id for row in kept]
    candidates = sorted(problem.id for problem in survey.problems if problem.shown != "a?")
    assert sorted(ids) == candidates[:2]
    assert all(row < len(ROWS) for row in kept)


# Texts that differ more than by white space, so that equal ids mean equal texts.
TEXTS = st.sampled_from([f"problem number {number}" for number in range(6)])


@given(st.lists(st.tuples(TEXTS, st.sampled_from(["1", "2"])), min_size=1, max_size=30))
def test_every_row_has_one_fate_and_repetition_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [*rows, ("the one that stays", "7")]
    survey, once = selected(folder, rows)
    kept = [rows[row] for row in range(len(rows)) if once.fate[row] == KEPT]
    agreed = {text for text, _ in rows if len({answer for other, answer in rows if other == text}) == 1}
    assert [text for text, _ in kept] == [text for text in dict.fromkeys(text for text, _ in rows) if text in agreed]
    _, thrice = selected(folder, rows * 3)
    assert [(rows * 3)[row] for row in range(len(rows) * 3) if thrice.fate[row] == KEPT] == kept
    assert len(survey.problems) == len({text for text, _ in rows})


def test_answers_that_say_the_same_do_not_conflict() -> None:
    assert len({answer_key(text) for text in ("34", " 34", "034", "34.0", "+34", "３４")}) == 1
    assert answer_key("\u22123") == answer_key("-3") != answer_key("3")
    assert answer_key("0.5") != answer_key("1/2")


def test_scripts_are_told_apart() -> None:
    assert [language(text) for text in ("x = 2", "求 x", "これは x", "Найти x")] == [
        "Latin",
        "Chinese",
        "Japanese",
        "Cyrillic",
    ]


SENTENCE = (
    "Triangle ABC has sides of length 13, 14 and 15; the incircle touches BC at D. Find the length of AD squared."
)


def test_a_problem_written_a_little_differently_is_found() -> None:
    texts = [
        SENTENCE,
        "A completely different question about the number of ways to seat seven guests around a round table.",
        SENTENCE.replace("; the", ". The").replace("length 13", "$length$ $13$"),
        SENTENCE.replace("13, 14 and 15", "20, 21 and 29").replace("AD", "BD"),
        "已知数列的前n项和为S,求数列的通项公式,并证明对任意正整数n都有不等式成立",
        "已知数列的前n项和为S, 求数列的通项公式, 并证明对任意正整数n都有不等式成立.",
    ]
    pairs = similar_pairs([signature(text) for text in texts])
    assert [(pair.later, pair.earlier) for pair in pairs] == [(2, 0), (5, 4)]
    assert all(pair.similarity == 1 for pair in pairs)

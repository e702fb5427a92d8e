"""The problems that are asked: one from the command line, a file of them, or those of the public example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.prompt_template import TemplateStripper, apply_template, template_text
from dapo_cli.dataset.readers import Batch, ColumnPair, read_batches
from dapo_cli.dataset.rows import answer_text, problem_text
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import Benchmark
from dapo_cli.evaluation.benchmark_problems import load_problems
from dapo_cli.inference.options import InferenceOptions
from dapo_cli.run.files import Note
from dapo_cli.types import Problem

EXAMPLE_ANSWERS = ("540", "204", "721")
"""The problems of the public inference example, in its order, named by their answers."""
PROBLEM_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = ("answer", "reward_model.ground_truth", "ground_truth")


def typed_problem(options: InferenceOptions, stdin: TextIO, template: str, note: Note) -> Problem:
    """The problem given as an argument, or on standard input. Without --gold its ground truth is empty.

    Raises:
        UsageError: there is none.
    """
    text = options.problem
    if text == "-" or (text is None and not stdin.isatty()):
        text = stdin.read()
    if text is None or not text.strip():
        raise UsageError(
            "dapo infer: no problem", hint='dapo infer "What is 12 + 34?", a problem on stdin, --file FILE or --example'
        )
    return _asked(text.strip(), options.gold or "", template, note)


def example_problems(card: Benchmark, files: Mapping[str, str], template: str) -> list[Problem]:
    """The three problems of the public inference example, taken from the benchmark by their answers.

    Raises:
        UsageError: the benchmark cannot be had; see `load_problems`.
    """
    by_answer = {
        problem.ground_truth: problem for problem in load_problems(card, files, template_text(template)).problems
    }
    return [by_answer[answer] for answer in EXAMPLE_ANSWERS]


def file_problems(path: Path, options: InferenceOptions, template: str, note: Note) -> list[Problem]:
    """The different problems of a file, in order; without an answer column their ground truths are empty.

    Raises:
        UsageError: no file, no such column, no rows, an unreadable cell, or two answers to one problem.
    """
    if not path.is_file():
        raise UsageError(f"--file: {path}: no such file")
    columns = _columns(path, options)
    known = columns.answer != columns.problem
    note(
        f"{path}: problems from column {columns.problem}, "
        + (f"answers from {columns.answer}" if known else "no answers")
    )
    found: dict[str, Problem] = {}
    rows = stripped = 0
    for where, text, answer in _rows(path, columns):
        problem, had_template = TemplateStripper(template).strip(text)
        rows, stripped = rows + 1, stripped + had_template
        key = problem_id(problem)
        first = found.setdefault(key, _problem(problem, answer, template))
        if first.ground_truth != answer:
            raise UsageError(
                f"{where}: the answer is {answer!r}, an earlier row of the problem says {first.ground_truth!r}"
            )
    if len(found) < rows:
        note(f"{path}: {rows} rows hold {len(found)} different problems; each is asked --samples times")
    if stripped:
        note(f"{path}: {stripped} rows already had a prompt template around the problem; it was taken off")
    return list(found.values())


def _asked(text: str, truth: str, template: str, note: Note) -> Problem:
    problem, had_template = TemplateStripper(template).strip(text)
    if had_template:
        note("the problem already had a prompt template around it; it was taken off")
    return _problem(problem, truth, template)


def _problem(text: str, truth: str, template: str) -> Problem:
    message = {"role": "user", "content": apply_template(template, text)}
    return Problem(problem_id(text), text, (message,), truth, "inference")


def _rows(path: Path, columns: ColumnPair) -> Iterator[tuple[str, str, str]]:
    """(place, problem, answer) of every row."""
    for batch in read_batches(path, columns):
        for index in range(len(batch.numbers)):
            where = batch.where(index)
            answer = ""
            if columns.answer != columns.problem:
                answer = answer_text(where, columns.answer, batch.answers[index])[0]
            yield where, problem_text(where, columns.problem, batch.problems[index]), answer


def _columns(path: Path, options: InferenceOptions) -> ColumnPair:
    """The columns as given, else the first known ones that the file's first row has; the problem's own column stands
    for no answer."""
    problems = [options.problem_column] if options.problem_column else PROBLEM_COLUMNS
    answers: Sequence[str | None] = [options.answer_column] if options.answer_column else [*ANSWER_COLUMNS, None]
    first_error: UsageError | None = None
    for problem in problems:
        for answer in answers:
            columns = ColumnPair(problem, answer or problem)
            try:
                first: Batch | None = next(iter(read_batches(path, columns)), None)
            except UsageError as error:
                if "no column" not in str(error):
                    raise
                first_error = first_error or error
                continue
            if first is None:
                raise UsageError(f"--file: {path}: there are no rows in it")
            return columns
    raise UsageError(str(first_error), hint="name them: --problem-column NAME, --answer-column NAME")

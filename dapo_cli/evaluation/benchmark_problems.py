"""The problems of a benchmark, from its hub repository or a local copy, checked against its card."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapo_cli.dataset.cards import FileColumns
from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.prompt_template import TemplateStripper, apply_template
from dapo_cli.dataset.readers import ColumnPair, read_batches
from dapo_cli.dataset.rows import answer_text, problem_text
from dapo_cli.dataset.survey import answer_key
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.evaluation.benchmark import Benchmark, BenchmarkSource
from dapo_cli.types import Problem

LAYOUTS = (
    FileColumns(problem_column="prompt", answer_column="reward_model.ground_truth"),
    FileColumns(problem_column="problem", answer_column="answer"),
    FileColumns(problem_column="question", answer_column="answer"),
)
"""Columns that local copies are known to have, tried after the card's: the DAPO layout, and plain ones."""


@dataclass(frozen=True, slots=True)
class BenchmarkProblems:
    """Every problem once, in the order of their ids, so that copies in another order are the same benchmark."""

    problems: tuple[Problem, ...]
    rows: int
    """Rows of the file; a multiple of the problems where it repeats them."""
    origin: str
    rewritten: int
    """Integer answers that were written in another way (034, 34.0): scorers compare texts."""


def load_problems(benchmark: Benchmark, files: Mapping[str, str], template: str) -> BenchmarkProblems:
    """The problems of a card that is not `heldout`: from `files` (benchmark -> local file), else from the hub.

    A file that repeats every problem n times, as the public AIME file does 32 times, is its problems: how often each is
    asked is the evaluation's choice. `template` goes around each problem.

    Raises:
        UsageError: no file, no such columns, a wrong number of problems, or an answer that is not what the card says.
        VerificationError: the answers are not the benchmark's.
    """
    source = benchmark.source
    assert source is not None, "the held-out problems are in the prepared data"
    paths, origin = _files(benchmark, source, files.get(benchmark.name))
    rows = [row for path in paths for row in _rows(path, source)]
    problems = _distinct(benchmark.name, origin, rows, template)
    _check(benchmark.name, source, origin, [problem.ground_truth for problem in problems])
    plain = [
        replace(problem, ground_truth=answer_key(problem.ground_truth)) if source.integer_answers else problem
        for problem in problems
    ]
    rewritten = sum(new.ground_truth != old.ground_truth for new, old in zip(plain, problems, strict=True))
    ordered = sorted(plain, key=lambda problem: problem.problem_id)
    return BenchmarkProblems(tuple(ordered), len(rows), origin, rewritten)


def _files(benchmark: Benchmark, source: BenchmarkSource, local: str | None) -> tuple[Sequence[Path], str]:
    if local is not None:
        path = Path(local)
        if not path.is_file():
            raise UsageError(f"eval.files.{benchmark.name}: {path}: no such file")
        return [path], str(path)
    if source.hub is None:
        raise UsageError(f"{benchmark.name}: its card names no hub repository", hint=f"set eval.files.{benchmark.name}")
    from dapo_cli.hub import fetch_dataset_files

    try:
        fetched = fetch_dataset_files(source.hub.id, source.hub.revision, source.hub.files)
    except UsageError as error:
        hint = f"a local copy does too: --set eval.files.{benchmark.name}=FILE"
        raise UsageError(str(error), hint=f"{error.hint}; {hint}" if error.hint else hint) from error
    return fetched.files, f"{source.hub.id}@{fetched.commit[:12]}"


def _rows(path: Path, source: BenchmarkSource) -> list[tuple[str, str, str]]:
    """(place, text, ground truth) of every row, by the first layout whose columns the file has."""
    layouts = dict.fromkeys([source.columns, *LAYOUTS])
    first_error: UsageError | None = None
    for layout in layouts:
        columns = ColumnPair(layout.problem_column, layout.answer_column)
        try:
            batches = list(read_batches(path, columns))
        except UsageError as error:
            if "no column" not in str(error):
                raise
            first_error = first_error or error
            continue
        after = layout.answer_after if layout == source.columns else None
        return [
            (
                batch.where(index),
                problem_text(batch.where(index), columns.problem, batch.problems[index]),
                answer_text(batch.where(index), columns.answer, batch.answers[index], after)[0],
            )
            for batch in batches
            for index in range(len(batch.numbers))
        ]
    assert first_error is not None
    known = ", ".join(f"{layout.problem_column} + {layout.answer_column}" for layout in layouts)
    raise UsageError(str(first_error), hint=f"a benchmark file has one of these pairs of columns: {known}")


def _distinct(name: str, origin: str, rows: Iterable[tuple[str, str, str]], template: str) -> list[Problem]:
    strip = TemplateStripper("dapo").strip
    found: dict[str, Problem] = {}
    counts: dict[str, int] = {}
    for where, text, truth in rows:
        problem = strip(text)[0]
        key = problem_id(problem)
        message = {"role": "user", "content": apply_template(template, problem)}
        known = found.setdefault(key, Problem(key, problem, (message,), truth, name, dataset=name))
        if answer_key(known.ground_truth) != answer_key(truth):
            raise UsageError(
                f"{where}: the answer is {truth!r}, an earlier row of the same problem says {known.ground_truth!r}"
            )
        counts[key] = counts.get(key, 0) + 1
    if len(set(counts.values())) > 1:
        few, many = min(counts.values()), max(counts.values())
        raise UsageError(
            f"{origin}: some problems of {name} are there {few} times and others {many} times",
            hint="repeat every problem equally often, or not at all",
        )
    return list(found.values())


def answers_sha256(answers: Iterable[str]) -> str:
    """What `answers_sha256` of a card holds: 16 hex digits over the sorted answers, in any order and any writing.

    >>> answers_sha256(["034", "7"]) == answers_sha256(["7.0", "34"])
    True
    """
    return hashlib.sha256("\n".join(sorted(map(answer_key, answers))).encode()).hexdigest()[:16]


def _check(name: str, source: BenchmarkSource, origin: str, answers: Sequence[str]) -> None:
    if len(answers) != source.problems:
        raise UsageError(f"{origin}: {len(answers)} different problems, but {name} has {source.problems}")
    odd = [answer for answer in answers if source.integer_answers and not answer_key(answer).lstrip("-").isdigit()]
    if odd:
        raise UsageError(f"{origin}: {len(odd)} answers of {name} are not integers, first: {odd[0]!r}")
    found = answers_sha256(answers)
    if source.answers_sha256 not in (None, found):
        raise VerificationError(
            f"{origin}: these are not the answers of {name} (hash {found}, its card says {source.answers_sha256})",
            hint="another edition, or a damaged copy; for a benchmark of your own write a card of your own",
        )

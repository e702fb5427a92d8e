"""A file of completions as an evaluation: scored again, and compared with the verdicts that came with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.prompt_template import TemplateStripper
from dapo_cli.dataset.readers import read_records
from dapo_cli.dataset.rows import answer_text, problem_text
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.evaluate import PromptedProblem, Question, Response
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import SampleRecord
from dapo_cli.types import FinishReason, Problem

COLUMNS = {
    "problem": ("problem", "question", "prompt"),
    "answer": ("answer", "gt", "ground_truth", "reward_model.ground_truth"),
    "response": ("response", "responses", "completion", "completions", "output", "code"),
    "verdict": ("verdict", "score", "acc", "correct", "res.acc"),
    "prediction": ("prediction", "pred"),
    "finish_reason": ("finish_reason",),
    "tokens": ("response_tokens", "tokens"),
}
"""What is read from a file of completions, and the names under which it is looked for unless one is given."""
REQUIRED = ("problem", "response")


@dataclass(frozen=True, slots=True)
class Completion:
    """One response as it stands in the file."""

    where: str
    text: str
    tokens: int | None
    finish_reason: FinishReason | None
    verdict: bool | None
    """What the file itself says; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class Completions:
    """The file, by problem in order of first appearance."""

    path: Path
    columns: Mapping[str, str]
    """Which columns were read."""
    problems: tuple[Problem, ...]
    completions: tuple[tuple[Completion, ...], ...]
    """Of each problem, in the order of the file; equally many."""

    @property
    def samples(self) -> int:
        """Responses per problem."""
        return len(self.completions[0])

    @property
    def prompted(self) -> list[PromptedProblem]:
        """The problems, with no prompts: nobody knows them."""
        return [(problem, np.empty(0, dtype=np.int32)) for problem in self.problems]

    def respond(self, questions: Sequence[Question]) -> Iterator[Response]:
        """The file's responses to the questions asked."""
        for question in questions:
            completion = self.completions[question.index][question.sample]
            reason = completion.finish_reason
            yield Response(question.index, question.sample, completion.text, completion.tokens, reason)


def read_completions(
    path: Path, given: Mapping[str, str], known: Sequence[Problem] | None, samples: int | None
) -> Completions:
    """Read a jsonl, json, csv or parquet file with a row per response, or a row per problem and a list of responses.

    `given` names columns (see `COLUMNS`). With the problems of a benchmark in `known`, the rows are its problems (the
    template taken off, white space aside) and its answers count; without, the file brings its own answers. `samples`
    takes the first so many of each problem.

    Raises:
        UsageError: no such column, a problem that the benchmark does not have or one without completions, unequal
            numbers of completions, or a row that cannot be read; each named by its place.
    """
    found: dict[str, list[Completion]] = {}
    problems: dict[str, Problem] = {}
    asked = None if known is None else {problem.problem_id: problem for problem in known}
    strip = TemplateStripper("dapo").strip
    columns: dict[str, str] = {}
    for where, record in read_records(path):
        columns = columns or find_columns(where, record, given, needs_answer=known is None)
        text = strip(problem_text(where, columns["problem"], _cell(record, columns["problem"])))[0]
        key = problem_id(text)
        if asked is not None and key not in asked:
            raise UsageError(f"{where}: {columns['problem']}: not a problem of the benchmark: {text[:80]!r}")
        if key not in problems:
            problems[key] = asked[key] if asked is not None else _own_problem(where, key, text, record, columns)
        found.setdefault(key, []).extend(_completions(where, record, columns, problems[key].ground_truth))
    if not found:
        raise UsageError(f"{path}: the file holds no rows")
    missing = [problem for problem in asked.values() if problem.problem_id not in found] if asked is not None else []
    if missing:
        raise UsageError(f"{path}: {len(missing)} problems have no completion, first: {missing[0].text[:80]!r}")
    counts = {key: len(own) for key, own in found.items()}
    few, many = min(counts.values()), max(counts.values())
    if samples is None and few != many:
        raise UsageError(
            f"{path}: problems have between {few} and {many} completions", hint=f"--samples {few} takes as many of each"
        )
    if samples is not None and samples > few:
        raise UsageError(f"{path}: --samples {samples}: a problem has only {few} completions")
    order = [problem.problem_id for problem in known] if known is not None else list(found)
    return Completions(
        path,
        columns,
        tuple(problems[key] for key in order),
        tuple(tuple(found[key][:samples]) for key in order),
    )


def find_columns(where: str, record: Any, given: Mapping[str, str], *, needs_answer: bool) -> dict[str, str]:
    """Which column holds what, from `given` or by the usual names.

    Raises:
        UsageError: an unknown kind of column, or one that is not there.
    """
    if not isinstance(record, dict):
        raise UsageError(f"{where}: want an object with columns, got {type(record).__name__}")
    unknown = sorted(set(given) - set(COLUMNS))
    if unknown:
        raise UsageError(f"--column {unknown[0]}: want one of {', '.join(COLUMNS)}")
    columns = {}
    for kind, names in COLUMNS.items():
        tried = (given[kind],) if kind in given else names
        name = next((name for name in tried if _cell(record, name) is not None), None)
        if name is not None:
            columns[kind] = name
        elif kind in given or kind in REQUIRED or (kind == "answer" and needs_answer):
            raise UsageError(
                f"{where}: no column {' or '.join(map(repr, tried))} for the {kind}; columns: {', '.join(record)}",
                hint=f"--column {kind}=NAME"
                + ("; or --benchmark NAME, whose card has the answers" if kind == "answer" else ""),
            )
    return columns


def _cell(record: Mapping[str, Any], name: str) -> Any:
    value: Any = record
    for part in [name] if name in record else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _own_problem(where: str, key: str, text: str, record: Any, columns: Mapping[str, str]) -> Problem:
    truth, _ = answer_text(where, columns["answer"], _cell(record, columns["answer"]))
    return Problem(key, text, ({"role": "user", "content": text},), truth, "completions", dataset="completions")


def _completions(where: str, record: Any, columns: Mapping[str, str], truth: str) -> list[Completion]:
    texts = _cell(record, columns["response"])
    listed = isinstance(texts, list)
    count = len(texts) if listed else 1

    def cells(kind: str) -> list[Any]:
        value = _cell(record, columns[kind]) if kind in columns else None
        if isinstance(value, list) and listed:
            if len(value) != count:
                raise UsageError(f"{where}: {columns[kind]}: {len(value)} values for {count} responses")
            return value
        return [value] * count

    verdicts = [_said(value) for value in cells("verdict")]
    if "verdict" not in columns and "prediction" in columns:
        verdicts = [_agrees(prediction, truth) for prediction in cells("prediction")]
    rows = zip(cells("response"), cells("tokens"), cells("finish_reason"), verdicts, strict=True)
    return [_completion(where, columns, *row) for row in rows]


def _completion(
    where: str, columns: Mapping[str, str], text: Any, tokens: Any, reason: Any, verdict: bool | None
) -> Completion:
    if not isinstance(text, str):
        raise UsageError(f"{where}: {columns['response']}: want a text, got {text!r}")
    if reason not in (None, "stop", "length"):
        raise UsageError(f"{where}: {columns['finish_reason']}: want stop or length, got {reason!r}")
    return Completion(where, text, tokens if isinstance(tokens, int) else None, reason, verdict)


def _said(verdict: Any) -> bool | None:
    """True or false of the ways a verdict is written: booleans, 1 and 0, and 1 and -1."""
    if isinstance(verdict, bool):
        return verdict
    return verdict > 0 if isinstance(verdict, int | float) else None


def _agrees(prediction: Any, truth: str) -> bool | None:
    """The verdict of a file that has none but says what it read: the same number, or the same text."""
    if prediction is None:
        return None
    texts = [str(prediction).strip().replace(",", ""), truth.strip().replace(",", "")]
    try:
        return float(texts[0]) == float(texts[1])
    except ValueError:
        return texts[0] == texts[1]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One response on which this scorer and the file's own verdict differ."""

    where: str
    sample: int
    upstream: bool
    outcome: str
    prediction: str | None
    ground_truth: str
    reason: str
    """What was compared, in the scorer's words."""


def verdicts_of(completions: Completions) -> int:
    """How many completions bring a verdict."""
    return sum(each.verdict is not None for own in completions.completions for each in own)


def disagreements(completions: Completions, samples: Sequence[SampleRecord], explain: Any) -> list[Disagreement]:
    """Every response whose outcome is not the file's verdict; `samples` in the order of problems and samples.

    `explain` takes a response and a ground truth and returns what was compared, as text.
    """
    given = [each for own in completions.completions for each in own]
    return [
        Disagreement(
            where=each.where,
            sample=record.sample,
            upstream=each.verdict,
            outcome=record.outcome,
            prediction=record.prediction,
            ground_truth=record.ground_truth,
            reason=explain(record.response, record.ground_truth),
        )
        for each, record in zip(given, samples, strict=True)
        if each.verdict is not None and each.verdict != (record.outcome == "right")
    ]


def identity(path: Path) -> str:
    """A name for the completions of a file: equal names mean equal files."""
    with path.open("rb") as stream:
        return f"{path}#{hashlib.file_digest(stream, 'sha256').hexdigest()[:12]}"


def agreement_text(found: Sequence[Disagreement], verdicts: int, result: EvaluationResult, scored: str) -> str:
    """How many of the file's verdicts are confirmed, and its own score beside this one."""
    lenient = sum(each.upstream for each in found)
    upstream = (result.num_correct.sum() + lenient - (len(found) - lenient)) / verdicts if verdicts else 0.0
    return (
        f"{verdicts} verdicts in the file, {verdicts - len(found)} confirmed by {scored}: the file's own score is "
        f"{100 * upstream:.2f}, this one {100 * result.avg_at_n:.2f}; {lenient} right there and not here, "
        f"{len(found) - lenient} the other way round"
    )


def write_disagreements(path: Path, found: Sequence[Disagreement]) -> None:
    """One JSON object per line, in the order of the file."""
    fields = Disagreement.__dataclass_fields__
    lines = [json.dumps({name: getattr(each, name) for name in fields}, ensure_ascii=False) for each in found]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")

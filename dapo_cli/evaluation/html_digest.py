"""What a report needs of samples.jsonl, read in one pass that keeps no response; chosen responses are read again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.result import EvaluationResult, settings_from_json
from dapo_cli.evaluation.samples import REPORT, SAMPLES, SETTINGS, SampleRecord

Kind = Literal["right", "wrong", "no_answer", "truncated", "verifier_error"]
KINDS: dict[Kind, str] = {
    "right": "right",
    "wrong": "wrong",
    "no_answer": "no answer",
    "truncated": "truncated (not right, and cut off at the limit)",
    "verifier_error": "verifier error (scoring failed; counts as not right)",
}
SHOWN_PROBLEMS, SHOWN_PER_PROBLEM, SHOWN_RESPONSES = 40, 8, 240


@dataclass(frozen=True, slots=True)
class SampleDigest:
    """One response without its text."""

    record: SampleRecord
    """With an empty problem and response."""
    offset: int
    """Where its line begins in samples.jsonl, in bytes."""

    @property
    def kind(self) -> Kind:
        """What the grid shows: a cut-off response that is right is right, and one that is not is truncated."""
        outcome = self.record.outcome
        if outcome in ("right", "verifier_error") or self.record.finish_reason != "length":
            return outcome
        return "truncated"


@dataclass(frozen=True, slots=True)
class ProblemDigest:
    """One problem and its responses, in order."""

    problem_id: str
    text: str
    ground_truth: str
    samples: tuple[SampleDigest, ...]

    @property
    def num_correct(self) -> int:
        """Right responses."""
        return sum(sample.kind == "right" for sample in self.samples)

    def wrong_answers(self) -> list[tuple[str, int]]:
        """Extracted answers that are not right and how often each was given, most frequent first.

        Equally frequent ones are in the order of their first response.
        """
        records = [sample.record for sample in self.samples if sample.record.outcome != "right"]
        return Counter(each.prediction for each in records if each.prediction is not None).most_common()

    def majority(self) -> list[tuple[str | None, int]]:
        """The most frequent extracted answer, several in a tie; None, having no answer, has votes as in maj@k."""
        ranked = Counter(sample.record.prediction for sample in self.samples).most_common()
        return [each for each in ranked if each[1] == ranked[0][1]]


@dataclass(frozen=True, slots=True)
class Digest:
    """A finished evaluation without the text of its responses."""

    folder: Path
    settings: dict[str, Any]
    """settings.json as it is."""
    report: dict[str, Any]
    """report.json as it is."""
    result: EvaluationResult
    problems: tuple[ProblemDigest, ...]


def read_digest(folder: Path) -> Digest:
    """Read a finished evaluation; memory does not grow with the length of responses.

    Raises:
        UsageError: the folder holds no finished evaluation.
        DapoError: samples.jsonl is damaged, or does not hold the samples that settings.json says.
    """
    if not (folder / REPORT).exists():
        raise UsageError(f"{folder}: no finished evaluation, {REPORT} is missing")
    raw: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    settings = settings_from_json(raw)
    problems = tuple(_problems(folder / SAMPLES, settings.samples))
    wanted = report["num_problems"]
    if len(problems) != wanted:
        raise DapoError(f"{folder / SAMPLES}: {len(problems)} problems, {REPORT} says {wanted}")
    records = [sample.record for problem in problems for sample in problem.samples]
    return Digest(folder, raw, report, EvaluationResult.from_samples(settings, records), problems)


def _problems(path: Path, samples: int) -> Iterator[ProblemDigest]:
    own: list[SampleDigest] = []
    text = ""
    for offset, record in _records(path):
        text = text if own else record.problem
        own.append(SampleDigest(replace(record, problem="", response=""), offset))
        first = own[0].record
        if record.problem_id != first.problem_id or record.sample != len(own) - 1:
            due = f"sample {len(own) - 1} of {first.problem_id}"
            what = f"sample {record.sample} of {record.problem_id} where {due} should be"
            raise DapoError(f"{path}: {what}", hint="Evaluate again into another --out.")
        if len(own) == samples:
            yield ProblemDigest(first.problem_id, text, first.ground_truth, tuple(own))
            own = []
    if own:
        raise DapoError(f"{path}: the last problem has {len(own)} of {samples} samples")


def _records(path: Path) -> Iterator[tuple[int, SampleRecord]]:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield offset, _parse(f"{path}:{number}", line)
            offset += len(line)


def _parse(where: str, line: bytes) -> SampleRecord:
    try:
        return SampleRecord(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise DapoError(f"{where}: not a sample: {error}", hint="Evaluate again into another --out.") from error


def read_response(folder: Path, sample: SampleDigest) -> str:
    """The text of one response.

    Raises:
        DapoError: samples.jsonl changed since it was digested.
    """
    with (folder / SAMPLES).open("rb") as file:
        file.seek(sample.offset)
        record = _parse(f"{folder / SAMPLES}, byte {sample.offset}", file.readline())
    if (record.problem_id, record.sample) != (sample.record.problem_id, sample.record.sample):
        raise DapoError(f"{folder / SAMPLES}: changed while it was read")
    return record.response


def choose_problems(problems: Sequence[ProblemDigest]) -> list[int]:
    """Positions of the problems whose responses are shown, fewest right answers first.

    All of them, or the worst and the best where there are more than `SHOWN_PROBLEMS`.
    """
    order = sorted(range(len(problems)), key=lambda index: (problems[index].num_correct, index))
    half = SHOWN_PROBLEMS // 2
    return order if len(order) <= SHOWN_PROBLEMS else order[:half] + order[-half:]


def choose_samples(problem: ProblemDigest, shown_problems: int) -> list[SampleDigest]:
    """Responses of a problem that are worth reading: of each kind in turn, different answers before repeated ones."""
    wanted = min(SHOWN_PER_PROBLEM, max(1, SHOWN_RESPONSES // shown_problems))
    frequency = Counter(sample.record.prediction for sample in problem.samples)
    earlier: Counter[str | None] = Counter()
    ranked: list[tuple[tuple[int, int, int], SampleDigest]] = []
    for position, sample in enumerate(problem.samples):
        answer = sample.record.prediction
        ranked.append(((earlier[answer], -frequency[answer], position), sample))
        earlier[answer] += 1
    ranked.sort(key=lambda each: each[0])
    turns: Counter[str] = Counter()
    in_turn = []
    for place, (_, sample) in enumerate(ranked):
        in_turn.append(((turns[sample.kind], place), sample))
        turns[sample.kind] += 1
    chosen = [sample for _, sample in sorted(in_turn, key=lambda each: each[0])[:wanted]]
    return sorted(chosen, key=lambda sample: sample.record.sample)

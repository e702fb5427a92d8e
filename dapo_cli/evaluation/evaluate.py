"""Evaluate whatever answers questions: one function during a run, for engines, endpoints and stored completions."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.report import report_values
from dapo_cli.evaluation.result import EvaluationResult, EvaluationSettings, settings_from_json
from dapo_cli.evaluation.samples import (
    REPORT,
    SAMPLES,
    SETTINGS,
    SampleFile,
    SampleRecord,
    open_folder,
    read_samples,
    write_json,
    write_samples,
)
from dapo_cli.recipe.schema import Reward
from dapo_cli.reward.scoring import PendingVerdict
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.types import FinishReason, Problem, RolloutGroup, RolloutRequest, Sampling

Generate = Callable[[Sequence[RolloutRequest]], Iterator[RolloutGroup]]
PromptedProblem = tuple[Problem, npt.NDArray[np.int32]]
"""A problem and its rendered prompt ids, [prompt tokens]."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One response that is wanted."""

    index: int
    """Of the problem."""
    sample: int
    problem: Problem
    prompt_ids: npt.NDArray[np.int32]  # [prompt tokens]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Response:
    """The response to one question; those of several may arrive in any order."""

    index: int
    sample: int
    text: str
    tokens: int | None
    """None where nobody counted."""
    finish_reason: FinishReason | None


Respond = Callable[[Sequence[Question]], Iterator[Response]]


def from_engine(generate: Generate) -> Respond:
    """An engine as something that answers: the questions of one problem are one request."""

    def respond(questions: Sequence[Question]) -> Iterator[Response]:
        by_problem: dict[int, list[Question]] = {}
        for question in questions:
            by_problem.setdefault(question.index, []).append(question)
        # An engine that ends early is found by whoever counts the responses.
        groups = generate([_request(own) for own in by_problem.values()])
        for own, group in zip(by_problem.values(), groups, strict=False):
            if group.problem.problem_id != own[0].problem.problem_id or len(group.rollouts) != len(own):
                got = f"{len(group.rollouts)} responses to {group.problem.problem_id}"
                raise DapoError(f"evaluation: expected {len(own)} responses to {own[0].problem.problem_id}, got {got}")
            yield from _responses(own, group)

    return respond


def one_by_one(generate: Generate) -> Respond:
    """An engine that gives groups back as they finish: every question is a request of its own."""

    def respond(questions: Sequence[Question]) -> Iterator[Response]:
        requests = [
            RolloutRequest(place, each.problem, each.prompt_ids, each.sampling, (each.seed,))
            for place, each in enumerate(questions)
        ]
        for group in generate(requests):
            yield from _responses([questions[group.index]], group)

    return respond


def _request(own: Sequence[Question]) -> RolloutRequest:
    first = own[0]
    seeds = tuple(question.seed for question in own)
    return RolloutRequest(first.index, first.problem, first.prompt_ids, first.sampling, seeds)


def _responses(own: Sequence[Question], group: RolloutGroup) -> Iterator[Response]:
    for question, rollout in zip(own, group.rollouts, strict=True):
        tokens = len(rollout.response_ids)
        yield Response(question.index, question.sample, rollout.response, tokens, rollout.finish_reason)


def evaluate(
    respond: Respond,
    problems: Sequence[PromptedProblem],
    settings: EvaluationSettings,
    reward: Reward,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Ask for `settings.samples` responses per problem, score them, and sum up. Overlong penalties play no part.

    With a `folder`, samples.jsonl grows as responses arrive, report.json is written at the end, and an evaluation that
    was killed there goes on where it was: it ends in the same files as one that was not. `progress` is called with
    (responses done, responses), first with what was already in the folder.

    Raises:
        UsageError: no problems, one problem twice, or a folder that holds an evaluation with other settings.
        DapoError: the folder is damaged, or `respond` ended early or answered what was not asked.
    """
    _refuse_repeats([problem for problem, _ in problems])
    questions = _questions(problems, settings)
    done: dict[tuple[int, int], SampleRecord] = {}
    if folder is not None:
        found = open_folder(folder, _fingerprint(problems, settings, reward))
        done = _taken_up(folder, found, questions)
    _report_progress(progress, len(done), len(questions))
    missing = [question for question in questions if (question.index, question.sample) not in done]
    with SampleFile(folder / SAMPLES) if folder is not None else nullcontext() as file:
        for question, record in _judged(respond, missing, reward):
            if file is not None:
                file.append(record)
            done[question.index, question.sample] = record
            _report_progress(progress, len(done), len(questions))
    if len(done) < len(questions):
        raise DapoError(f"evaluation of {settings.benchmark}: {len(done)} of {len(questions)} responses came")
    samples = [done[question.index, question.sample] for question in questions]
    result = EvaluationResult.from_samples(settings, samples)
    if folder is not None:
        if list(done) != [(question.index, question.sample) for question in questions]:
            write_samples(folder / SAMPLES, samples)
        write_json(folder / REPORT, report_values(result, reward))
    return result


def _judged(respond: Respond, missing: Sequence[Question], reward: Reward) -> Iterator[tuple[Question, SampleRecord]]:
    """The record of every response, in the order of arrival; scoring does not hold up the responses."""
    if not missing:
        return
    # Whatever training does about a failed verdict, an evaluation shows it.
    shown = reward.model_copy(update={"on_verifier_error": "exclude"})
    asked = {(question.index, question.sample): question for question in missing}
    waiting: deque[tuple[Question, Response, PendingVerdict]] = deque()
    for response in respond(missing):
        question = asked.pop((response.index, response.sample), None)
        if question is None:
            raise DapoError(f"evaluation: sample {response.sample} of problem {response.index} was not asked for")
        verdict = PendingVerdict(shown.response_prefix + response.text, question.problem, shown)
        waiting.append((question, response, verdict))
        while waiting and waiting[0][2].done():
            yield _record(*waiting.popleft())
    while waiting:
        yield _record(*waiting.popleft())


def _record(question: Question, response: Response, verdict: PendingVerdict) -> tuple[Question, SampleRecord]:
    scored = verdict.result()
    record = SampleRecord(
        problem_id=question.problem.problem_id,
        problem=question.problem.text,
        ground_truth=question.problem.ground_truth,
        sample=question.sample,
        seed=question.seed,
        response=response.text,
        response_tokens=response.tokens,
        finish_reason=response.finish_reason,
        outcome=scored.outcome,
        prediction=scored.prediction,
    )
    return question, record


def load_result(folder: Path) -> EvaluationResult:
    """The result of a finished evaluation.

    Raises:
        UsageError: the folder holds no finished evaluation.
        DapoError: samples.jsonl is damaged.
    """
    if not (folder / REPORT).exists():
        raise UsageError(f"{folder}: no finished evaluation, {REPORT} is missing")
    settings = settings_from_json(json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
    return EvaluationResult.from_samples(settings, read_samples(folder / SAMPLES))


def sample_seed(seed: int, problem_id: str, sample: int) -> int:
    """64-bit seed of one response: the same for every order of problems, number of samples and policy version."""
    return rollout_seed("evaluation", seed, problem_id, sample)


def _questions(problems: Sequence[PromptedProblem], settings: EvaluationSettings) -> list[Question]:
    return [
        Question(index, sample, problem, ids, settings.sampling, sample_seed(settings.seed, problem.problem_id, sample))
        for index, (problem, ids) in enumerate(problems)
        for sample in range(settings.samples)
    ]


def _fingerprint(problems: Sequence[PromptedProblem], settings: EvaluationSettings, reward: Reward) -> dict[str, Any]:
    """Everything that decides the result, for settings.json; the prompts as one hash."""
    digest = blake2b(digest_size=16)
    for problem, prompt_ids in problems:
        digest.update(repr((problem.problem_id, problem.ground_truth, prompt_ids.tolist())).encode())
    scoring = {"scorer": reward.scorer, "response_prefix": reward.response_prefix}
    return {**asdict(settings), "reward": scoring, "problems": len(problems), "prompts_hash": digest.hexdigest()}


def _refuse_repeats(problems: Sequence[Problem]) -> None:
    if not problems:
        raise UsageError("evaluation: there are no problems", hint="Set dataset.heldout_problems above 0.")
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise UsageError(f"evaluation: the problem {problem.problem_id} is there twice: {problem.text[:80]!r}")
        seen.add(problem.problem_id)


def _taken_up(
    folder: Path, found: Sequence[SampleRecord], questions: Sequence[Question]
) -> dict[tuple[int, int], SampleRecord]:
    """The samples that are there, by problem and sample; each must be of this very evaluation."""
    asked = {(question.problem.problem_id, question.sample): question for question in questions}
    done = {}
    for record in found:
        question = asked.get((record.problem_id, record.sample))
        if question is None or question.seed != record.seed or (question.index, question.sample) in done:
            what = f"sample {record.sample} of {record.problem_id} is not one of this evaluation, or is there twice"
            raise DapoError(f"{folder / SAMPLES}: {what}", hint="Choose another --out.")
        done[question.index, question.sample] = record
    return done


def _report_progress(progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)

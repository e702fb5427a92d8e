"""Evaluate a policy on a benchmark: the same function during a run and for `dapo eval`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
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
    SampleRecord,
    append_samples,
    open_folder,
    read_samples,
    write_json,
)
from dapo_cli.recipe.schema import Reward
from dapo_cli.reward.scoring import score_in_order
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.types import Problem, RolloutGroup, RolloutRequest

Generate = Callable[[Sequence[RolloutRequest]], Iterator[RolloutGroup]]
PromptedProblem = tuple[Problem, npt.NDArray[np.int32]]
"""A problem and its rendered prompt ids, [prompt tokens]."""


def evaluate(
    generate: Generate,
    problems: Sequence[PromptedProblem],
    settings: EvaluationSettings,
    reward: Reward,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Sample `settings.samples` responses per problem, score them, and sum up. Overlong penalties play no part.

    With a `folder`, samples.jsonl grows as groups arrive, report.json is written at the end, and an evaluation that
    was killed there goes on where it was. `progress` is called with (problems done, problems), first with what was
    already in the folder.

    Raises:
        UsageError: no problems, one problem twice, or a folder that holds an evaluation with other settings.
        DapoError: the folder is damaged, or `generate` ended early.
    """
    _refuse_repeats([problem for problem, _ in problems])
    samples: list[SampleRecord] = []
    if folder is not None:
        samples = open_folder(folder, _fingerprint(problems, settings, reward), settings.samples)
        _refuse_foreign(folder, samples, problems, settings)
    done = len(samples) // settings.samples
    _report_progress(progress, done, len(problems))
    # Whatever training does about a failed verdict, an evaluation shows it.
    shown = reward.model_copy(update={"on_verifier_error": "exclude"})
    groups = generate(_requests(problems, settings)[done:])
    for scored in score_in_order(groups, shown, settings.sampling.max_response_tokens):
        records = _records(scored, problems[done][0], settings)
        if folder is not None:
            append_samples(folder / SAMPLES, records)
        samples += records
        done += 1
        _report_progress(progress, done, len(problems))
    if done < len(problems):
        raise DapoError(f"evaluation of {settings.benchmark}: the engine returned {done} of {len(problems)} problems")
    result = EvaluationResult.from_samples(settings, samples)
    if folder is not None:
        write_json(folder / REPORT, report_values(result, reward))
    return result


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


def _requests(problems: Sequence[PromptedProblem], settings: EvaluationSettings) -> list[RolloutRequest]:
    return [
        RolloutRequest(index, problem, prompt_ids, settings.sampling, _seeds(problem, settings))
        for index, (problem, prompt_ids) in enumerate(problems)
    ]


def _seeds(problem: Problem, settings: EvaluationSettings) -> tuple[int, ...]:
    return tuple(sample_seed(settings.seed, problem.problem_id, sample) for sample in range(settings.samples))


def _records(group: RolloutGroup, problem: Problem, settings: EvaluationSettings) -> list[SampleRecord]:
    if group.problem.problem_id != problem.problem_id or len(group.rollouts) != settings.samples:
        got = f"{len(group.rollouts)} responses to {group.problem.problem_id}"
        raise DapoError(f"evaluation: expected {settings.samples} responses to {problem.problem_id}, got {got}")
    return [
        SampleRecord(
            problem_id=problem.problem_id,
            problem=problem.text,
            ground_truth=problem.ground_truth,
            sample=sample,
            seed=seed,
            response=rollout.response,
            response_tokens=len(rollout.response_ids),
            finish_reason=rollout.finish_reason,
            outcome=rollout.scored.outcome,
            prediction=rollout.scored.prediction,
        )
        for sample, (seed, rollout) in enumerate(zip(_seeds(problem, settings), group.rollouts, strict=True))
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


def _refuse_foreign(
    folder: Path, samples: Sequence[SampleRecord], problems: Sequence[PromptedProblem], settings: EvaluationSettings
) -> None:
    """Samples taken up must be the first ones of this very evaluation, in order."""
    expected = [
        (problem.problem_id, sample, seed)
        for problem, _ in problems
        for sample, seed in enumerate(_seeds(problem, settings))
    ]
    found = [(sample.problem_id, sample.sample, sample.seed) for sample in samples]
    if found != expected[: len(found)]:
        raise DapoError(f"{folder / SAMPLES}: not the samples of these problems in order", hint="Choose another --out.")


def _report_progress(progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)

"""A finished evaluation that no model made, in the files of a real one. Shared with benchmarks/evaluation_report.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dapo_cli.evaluation.report import report_values
from dapo_cli.evaluation.result import EvaluationResult, EvaluationSettings
from dapo_cli.evaluation.samples import REPORT, SAMPLES, SETTINGS, SampleRecord, write_json, write_samples
from dapo_cli.recipe.schema import Reward
from dapo_cli.types import Sampling

SAMPLING = Sampling(20480, 1.0, 0.7, 0, 0.0, 1.0, 0.0, 0.0, (2,), ())
SETTINGS_OF_FAKE = EvaluationSettings("aime_2024", 32, SAMPLING, 7, "models/fake#0123abcd", "aime_2024", "d41d8cd98f00")
WORDS = ("so", "we", "have", "$x^2$", "<", "&", "therefore", "modulo", "17", "ABCD", "½", "Wait,", "let", "n")


@dataclass(frozen=True)
class Fake:
    """How large, and what about it."""

    problems: int = 30
    settings: EvaluationSettings = SETTINGS_OF_FAKE
    response_words: int = 40
    """Of a response of the full number of tokens."""
    counted: bool = True


def fake_record(fake: Fake, problem: int, sample: int) -> SampleRecord:
    """A response whose length, verdict and answer follow from its place; problems grow harder."""
    chance = random.Random(1000 * problem + sample)
    limit = fake.settings.sampling.max_response_tokens or 100
    tokens = min(limit, int(limit * (0.15 + 0.5 * problem / fake.problems + 0.55 * chance.random())))
    cut, right = tokens == limit, chance.random() > problem / fake.problems
    silent, failed = chance.random() < 0.05, chance.random() < 0.02
    outcome = "no_answer" if cut or silent else "verifier_error" if failed else "right" if right else "wrong"
    wrong = str(chance.randrange(100, 104))
    text = " ".join(chance.choices(WORDS, k=max(1, fake.response_words * tokens // limit)))
    return SampleRecord(
        problem_id=f"problem{problem:04d}",
        problem=f"Find the number of pairs with $a_{{{problem}}} < b$ & print it.",
        ground_truth=str(problem),
        sample=sample,
        seed=1000 * problem + sample,
        response=text,
        response_tokens=tokens if fake.counted else None,
        finish_reason="length" if cut else "stop",
        outcome=outcome,
        prediction={"right": str(problem), "wrong": wrong}.get(outcome),
    )


def write_fake(
    folder: Path, fake: Fake, change: Callable[[SampleRecord], SampleRecord] = lambda record: record
) -> Path:
    """Write samples.jsonl, settings.json and report.json of a finished evaluation; `change` edits each record."""
    folder.mkdir(parents=True, exist_ok=True)
    n = fake.settings.samples
    records = [change(fake_record(fake, problem, sample)) for problem in range(fake.problems) for sample in range(n)]
    write_samples(folder / SAMPLES, records)
    result = EvaluationResult.from_samples(fake.settings, [replace(record, response="") for record in records])
    reward = Reward()
    scoring = {"scorer": reward.scorer, "response_prefix": reward.response_prefix}
    write_json(folder / SETTINGS, {**asdict(fake.settings), "reward": scoring, "problems": fake.problems})
    write_json(folder / REPORT, report_values(result, reward))
    return folder

"""`dapo eval --completions`: a file of completions scored by the recipe's or the benchmark's scorer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.benchmark_problems import load_problems
from dapo_cli.evaluation.completions import (
    agreement_text,
    disagreements,
    identity,
    read_completions,
    verdicts_of,
    write_disagreements,
)
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.evaluation.result import EvaluationResult, EvaluationSettings
from dapo_cli.evaluation.samples import SAMPLES, read_samples
from dapo_cli.recipe.loading import LoadedRecipe
from dapo_cli.recipe.schema import Reward
from dapo_cli.reward.explain import explain
from dapo_cli.run.files import Note
from dapo_cli.types import Sampling

DISAGREEMENTS = "disagreements.jsonl"
UNKNOWN_SAMPLING = Sampling(0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, (), ())
"""Nobody knows how a file's completions were sampled."""


@dataclass(frozen=True, slots=True)
class CompletionsFile:
    """Which file, where it keeps what (see `completions.COLUMNS`), and how many of each problem; None: all."""

    path: Path
    columns: Mapping[str, str]
    samples: int | None


def evaluate_completions(
    loaded: LoadedRecipe,
    file: CompletionsFile,
    out: Path | None,
    note: Note,
    progress: Callable[[int, int], None],
) -> tuple[EvaluationResult, Path]:
    """Score a file of completions; returns the result and the folder it is in.

    Where the recipe's benchmark is a card with problems of its own, the file's completions are of those problems, and
    the card's scorer judges them; with `heldout` the file brings its answers, and `reward.scorer` judges. Verdicts of
    the file that differ are listed in disagreements.jsonl, each with what was compared.

    Raises:
        UsageError: see `read_completions` and `load_problems`.
    """
    recipe = loaded.recipe
    benchmark = load_benchmark(recipe.eval.benchmark)
    own = benchmark.source is None
    reward = benchmark.reward(recipe.reward)
    template = template_text(benchmark.prompt(recipe.prompt).template)
    known = None if own else load_problems(benchmark, recipe.eval.files, template).problems
    path = file.path
    found = read_completions(path, file.columns, known, file.samples)
    note("columns: " + ", ".join(f"{kind} {name!r}" for kind, name in found.columns.items()))
    settings = EvaluationSettings(
        benchmark="completions" if own else benchmark.name,
        samples=found.samples,
        sampling=UNKNOWN_SAMPLING,
        seed=0,
        model=identity(path),
        dataset=path.name if own else benchmark.name,
        dataset_hash=settings_hash(found.columns),
    )
    safe = re.sub(r"[^\w.-]+", "_", settings.model).strip("_")
    folder = out or Path("runs") / "_evals" / f"{settings.benchmark}_{safe}"
    result = evaluate(found.respond, found.prompted, settings, reward, folder, progress)
    verdicts = verdicts_of(found)
    if verdicts:
        differing = disagreements(
            found, read_samples(folder / SAMPLES), lambda text, gold: _compared(text, gold, reward)
        )
        write_disagreements(folder / DISAGREEMENTS, differing)
        note(agreement_text(differing, verdicts, result, str(reward.scorer)))
        note(f"each disagreement with its reason: {folder / DISAGREEMENTS}")
    return result, folder


def settings_hash(columns: Mapping[str, str]) -> str:
    """The columns that were read, as text: other columns are another evaluation."""
    return ",".join(f"{kind}={name}" for kind, name in columns.items())


def _compared(response: str, ground_truth: str, reward: Reward) -> str:
    """Why the deciding scorer judged as it did, in one line."""
    last = explain(reward.response_prefix + response, ground_truth, reward)[-1]
    if last.verdict.error is not None:
        return last.verdict.error
    if last.verdict.outcome == "no_answer":
        return f"no answer found; the scorer reads {last.looked_for}; the response ends {response[-60:]!r}"
    return f"{last.verdict.prediction!r} against {ground_truth!r}: {last.compared}"

"""`dapo eval`: the benchmark of a recipe for a checkpoint of a run, or for any model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dapo_cli.backend.local import pick_device, set_threads
from dapo_cli.dataset.load import open_prepared
from dapo_cli.evaluation.evaluate import evaluate, load_result
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.export.policy_folder import load_policy, weights_hash
from dapo_cli.policy import attention
from dapo_cli.policy.model import load_model, prepare_policy, probe_packing, resolve_model
from dapo_cli.recipe.loading import LoadedRecipe
from dapo_cli.recipe.schema import Model, Recipe
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.run.checkpoints import Checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note
from dapo_cli.run.recorder import evaluation_folder_name
from dapo_cli.workload import MODEL_CACHE, load_workload

Progress = Callable[[int, int], None]


def evaluate_run(
    loaded: LoadedRecipe, run: RunDirectory, checkpoint: Checkpoint, out: Path | None, note: Note, progress: Progress
) -> tuple[EvaluationResult, Path]:
    """Evaluate a checkpoint by the run's own recipe; returns the result and the folder it is in."""
    recipe = loaded.recipe
    policy, tokenizer = load_policy(run.path, checkpoint.path)
    attention.register()
    policy.set_attn_implementation(attention.NAME)
    prepare_policy(policy, recipe.model)
    probe_packing(policy, str(run.path))
    name = f"{run.path}@{checkpoint.step}"
    benchmark = recipe.eval.benchmark
    folder = out or run.evals / f"{benchmark}_avg{recipe.eval.samples}_at_{checkpoint.step}"
    return _evaluate(loaded, (str(run.path / "model"), name), (policy, tokenizer), folder, (note, progress)), folder


def baseline_of(run: RunDirectory, result: EvaluationResult) -> EvaluationResult | None:
    """The run's evaluation from before training, if it asked the same problems as often with the same sampling."""
    folder = run.evals / evaluation_folder_name(result.settings.benchmark, 0)
    if not (folder / REPORT).is_file():
        return None
    baseline = load_result(folder)
    asked = [[problem.problem_id for problem in each.problems] for each in (baseline, result)]
    same_settings = replace(baseline.settings, model=result.settings.model) == result.settings
    return baseline if same_settings and asked[0] == asked[1] else None


def evaluate_model(
    loaded: LoadedRecipe, model_path: str, out: Path | None, note: Note, progress: Progress
) -> tuple[EvaluationResult, Path]:
    """Evaluate any model on the recipe's benchmark; returns the result and the folder it is in.

    A local folder is named by the hash of its weights, so that a folder written anew is not taken for the old one.
    """
    model = Model(path=model_path, dtype=loaded.recipe.model.dtype)
    resolved = resolve_model(model, MODEL_CACHE)
    policy = load_model(resolved, model, pick_device(loaded.recipe.backend))
    name = f"{model_path}#{weights_hash(Path(resolved))[:12]}" if Path(resolved).is_dir() else model_path
    safe = re.sub(r"[^\w.-]+", "_", name).strip("_")
    folder = out or Path("runs") / "_evals" / f"{loaded.name}_{loaded.recipe.eval.benchmark}_{safe}"
    return _evaluate(loaded, (resolved, name), (policy, None), folder, (note, progress)), folder


def _evaluate(
    loaded: LoadedRecipe,
    names: tuple[str, str],
    model: tuple[Any, Any],
    folder: Path,
    report: tuple[Note, Progress],
) -> EvaluationResult:
    (resolved, name), (policy, _), (note, progress) = names, model, report
    recipe: Recipe = loaded.recipe
    workload = load_workload(loaded, open_prepared(recipe, str(loaded.path)), resolved, note)
    policy.to(pick_device(recipe.backend))
    set_threads(recipe.backend, sum(parameter.numel() for parameter in policy.parameters()))
    engine = HFEngine(policy, workload.tokenizer, recipe.model.dtype, recipe.rollout.max_concurrent_rollouts)
    problems = [(prompt.problem, prompt.prompt_ids) for prompt in workload.heldout]
    settings = workload.evaluation_settings(name)
    note(f"evaluating {name} on {settings.benchmark}: {len(problems)} problems x {settings.samples} samples")
    return evaluate(engine.generate, problems, settings, recipe.reward, folder, progress)

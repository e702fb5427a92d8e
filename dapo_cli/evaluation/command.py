"""`dapo eval`: the benchmark of a recipe for a checkpoint of a run, or for any model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo_cli.backend.in_process import InProcessVLLM
from dapo_cli.backend.local import pick_device, set_threads
from dapo_cli.dataset.load import open_prepared
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.evaluate import evaluate, from_engine, load_result
from dapo_cli.evaluation.plan import with_card_values
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.export.policy_folder import load_policy, weights_hash
from dapo_cli.policy.model import load_model, prepare_policy, probe_packing, resolve_model
from dapo_cli.recipe.keys import recipe_differences
from dapo_cli.recipe.loading import LoadedRecipe, load_recipe
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.run.checkpoints import Checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note
from dapo_cli.run.recorder import evaluation_folder_name
from dapo_cli.workload import MODEL_CACHE, Workload, load_workload

Progress = Callable[[int, int], None]

CHANGEABLE = (
    "eval.",
    "backend.",
    "rollout.engine",
    "rollout.max_concurrent_rollouts",
    "rollout.tensor_parallel",
    "rollout.gpu_memory_utilization",
    "rollout.enforce_eager",
    "dataset.prepared",
)
"""What an evaluation of a run may set: how it is evaluated and on what."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What is evaluated: the weights, and where their tokenizer and configs are."""

    policy: Any
    source: str
    """Folder or hub id of tokenizer and configs."""
    name: str
    """Equal names mean equal weights."""


def evaluate_run(
    loaded: LoadedRecipe, run: RunDirectory, checkpoint: Checkpoint, out: Path | None, note: Note, progress: Progress
) -> tuple[EvaluationResult, Path]:
    """Evaluate a checkpoint by the run's own recipe; returns the result and the folder it is in.

    Raises:
        UsageError: `loaded` differs from the run's recipe in more than how it is evaluated.
    """
    refuse_other_recipe(loaded, run)
    loaded = with_card_values(loaded)
    recipe = loaded.recipe
    policy, _ = load_policy(run.path, checkpoint.path)
    prepare_policy(policy, recipe.model)
    probe_packing(policy, str(run.path))
    subject = Subject(policy, str(run.path / "model"), f"{run.path}@{checkpoint.step}")
    first = f"_first{recipe.eval.problems}" if recipe.eval.problems else ""
    name = f"{recipe.eval.benchmark}{first}_avg{recipe.eval.samples}"
    folder = out or run.evals / evaluation_folder_name(name, checkpoint.step)
    return _evaluate(loaded, subject, folder, note, progress), folder


def refuse_other_recipe(loaded: LoadedRecipe, run: RunDirectory) -> None:
    """An evaluation of a run may change how it is evaluated, not which problems were held out in training.

    Raises:
        UsageError: another key differs; each is named.
    """
    own = load_recipe(run.recipe_file).recipe
    changed = [each for each in recipe_differences(own, loaded.recipe) if not each.key.startswith(CHANGEABLE)]
    if changed:
        keys = ", ".join(each.key for each in changed)
        raise UsageError(
            f"{run.path}: --set {keys}: an evaluation of a run can only change {', '.join(CHANGEABLE)}",
            hint="dapo eval RECIPE --model FOLDER evaluates an exported model by another recipe",
        )


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
    loaded: LoadedRecipe, model_path: str | None, out: Path | None, note: Note, progress: Progress
) -> tuple[EvaluationResult, Path]:
    """Evaluate `model_path`, else the recipe's model, on its benchmark; returns the result and the folder it is in.

    A local folder is named by the hash of its weights and a hub id by its commit, so that weights that changed are not
    taken for the old ones.
    """
    if model_path is not None:
        changes = {"path": model_path, "revision": None}
        model = loaded.recipe.model.model_copy(update=changes)
        loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"model": model}))
    model = loaded.recipe.model
    resolved = resolve_model(model, MODEL_CACHE)
    policy = load_model(resolved, model, pick_device(loaded.recipe.backend))
    local = Path(resolved).is_dir()
    identity = weights_hash(Path(resolved))[:12] if local else str(policy.config._commit_hash)[:12]
    subject = Subject(policy, resolved, f"{model.path}#{identity}")
    safe = re.sub(r"[^\w.-]+", "_", subject.name).strip("_")
    folder = out or Path("runs") / "_evals" / f"{loaded.name}_{loaded.recipe.eval.benchmark}_{safe}"
    return _evaluate(loaded, subject, folder, note, progress), folder


def _evaluate(loaded: LoadedRecipe, subject: Subject, folder: Path, note: Note, progress: Progress) -> EvaluationResult:
    # The subject is whole: an engine must not wait for adapters.
    whole = loaded.recipe.model.model_copy(update={"lora": None})
    loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"model": whole}))
    recipe, policy = loaded.recipe, subject.policy
    workload = load_workload(loaded, open_prepared(recipe, str(loaded.path)), subject.source, note)
    policy.to(pick_device(recipe.backend))
    set_threads(recipe.backend, sum(parameter.numel() for parameter in policy.parameters()))
    recipe, plan = workload.recipe, workload.evaluation
    settings = plan.settings(subject.name)
    with _engine(workload, subject, note) as engine:
        note(
            f"evaluating {subject.name} on {settings.benchmark} with {recipe.rollout.engine}: "
            f"{len(plan.prompts)} problems x {settings.samples} samples"
        )
        return evaluate(from_engine(engine.generate), plan.problems, settings, plan.reward, folder, progress)


@contextmanager
def _engine(workload: Workload, subject: Subject, note: Note) -> Iterator[HFEngine | InProcessVLLM]:
    """The recipe's engine, in this process, with the subject's weights.

    Raises:
        UsageError: it would have to be spread over several GPUs.
    """
    recipe = workload.recipe
    if recipe.rollout.engine == "hf":
        limit = recipe.rollout.max_concurrent_rollouts
        yield HFEngine(subject.policy, workload.tokenizer, recipe.model.dtype, limit)
        return
    prompts = [prompt.prompt_ids for prompt in workload.evaluation.prompts]
    engine = InProcessVLLM(recipe, subject.source, workload.tokenizer, subject.policy, prompts, note)
    try:
        engine.sync(0)
        yield engine
    finally:
        engine.close()

"""`dapo eval`: the benchmark of a recipe for a checkpoint of a run, or for any model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dapo_cli.backend.local import pick_device
from dapo_cli.dataset.load import open_prepared
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.engines import Subject, open_engine
from dapo_cli.evaluation.evaluate import Question, Respond, Response, evaluate, load_result
from dapo_cli.evaluation.plan import EvaluationPlan, plan_evaluation, with_card_values
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.export.policy_folder import load_policy, weights_hash
from dapo_cli.policy.model import load_model, load_tokenizer, prepare_policy, probe_packing, resolve_model
from dapo_cli.recipe.keys import recipe_differences
from dapo_cli.recipe.loading import LoadedRecipe, load_recipe
from dapo_cli.run.checkpoints import Checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note
from dapo_cli.run.recorder import evaluation_folder_name
from dapo_cli.types import Sampling
from dapo_cli.workload import MODEL_CACHE, check_contamination, load_configs

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


def evaluate_run(
    loaded: LoadedRecipe, run: RunDirectory, checkpoint: Checkpoint, out: Path | None, note: Note, progress: Progress
) -> tuple[EvaluationResult, Path]:
    """Evaluate a checkpoint by the run's own recipe; returns the result and the folder it is in.

    Raises:
        UsageError: `loaded` differs from the run's recipe in more than how it is evaluated.
    """
    refuse_other_recipe(loaded, run)
    loaded = with_card_values(loaded)
    evaluation = loaded.recipe.eval
    first = f"_first{evaluation.problems}" if evaluation.problems else ""
    name = f"{Path(evaluation.benchmark).stem}{first}_avg{evaluation.samples}"
    folder = out or run.evals / evaluation_folder_name(name, checkpoint.step)
    return _evaluate(loaded, subject_of_run(loaded, run, checkpoint), folder, note, progress), folder


def subject_of_run(loaded: LoadedRecipe, run: RunDirectory, checkpoint: Checkpoint) -> Subject:
    """A checkpoint of a run, its tokenizer and configs as the run saved them."""

    def load() -> Any:
        policy, _ = load_policy(run.path, checkpoint.path)
        prepare_policy(policy, loaded.recipe.model)
        probe_packing(policy, str(run.path))
        return policy

    return Subject(str(run.path / "model"), f"{run.path}@{checkpoint.step}", load, None)


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
    """Evaluate `model_path`, else the recipe's eval.model or model.path; returns the result and the folder it is in."""
    loaded = with_card_values(with_model(loaded, model_path))
    subject = subject_of_model(loaded)
    safe = re.sub(r"[^\w.-]+", "_", subject.name).strip("_")
    benchmark = Path(loaded.recipe.eval.benchmark).stem
    folder = out or Path("runs") / "_evals" / f"{loaded.name}_{benchmark}_{safe}"
    return _evaluate(loaded, subject, folder, note, progress), folder


def with_model(loaded: LoadedRecipe, model_path: str | None) -> LoadedRecipe:
    """The recipe with the model that is to be evaluated in place of the one that is trained."""
    path = model_path or loaded.recipe.eval.model
    if path is None:
        return loaded
    model = loaded.recipe.model.model_copy(update={"path": path, "revision": None})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"model": model}))


def subject_of_model(loaded: LoadedRecipe) -> Subject:
    """The recipe's model: a local folder is named by the hash of its weights and a hub id by its commit, so that
    weights that changed are not taken for the old ones.

    Raises:
        UsageError: the model cannot be had.
    """
    from dapo_cli.policy.sharded_load import local_model_folder

    recipe = loaded.recipe
    resolved = resolve_model(recipe.model, MODEL_CACHE)
    folder = local_model_folder(resolved, recipe.model.revision)
    identity = (weights_hash(folder) if Path(resolved).is_dir() else folder.name)[:12]

    def load() -> Any:
        return load_model(resolved, recipe.model, pick_device(recipe.backend))

    return Subject(resolved, f"{recipe.model.path}#{identity}", load, folder)


def _evaluate(loaded: LoadedRecipe, subject: Subject, folder: Path, note: Note, progress: Progress) -> EvaluationResult:
    # The subject is whole: an engine must not wait for adapters.
    whole = loaded.recipe.model.model_copy(update={"lora": None})
    loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"model": whole}))
    recipe = loaded.recipe
    tokenizer = load_tokenizer(subject.source, recipe.model)
    plan = open_plan(loaded, tokenizer, load_configs(subject.source, recipe), note)
    settings = plan.settings(subject.name)
    note(
        f"evaluating {subject.name} on {settings.benchmark}: {len(plan.prompts)} problems x {settings.samples} samples"
    )
    note(describe_sampling(settings.sampling))
    with ExitStack() as held:
        engine: list[Respond] = []

        def respond(questions: Sequence[Question]) -> Iterator[Response]:
            # A finished evaluation needs no engine.
            if not engine:
                engine.append(held.enter_context(open_engine(recipe, subject, tokenizer, plan, note)))
            return engine[0](questions)

        return evaluate(respond, plan.problems, settings, plan.reward, folder, progress)


def open_plan(loaded: LoadedRecipe, tokenizer: Any, configs: tuple[Any, Any], note: Note) -> EvaluationPlan:
    """The plan of the recipe's benchmark; the prepared data is opened where the benchmark is its held-out part, and
    where it is there, to say whether the benchmark's problems were trained on.

    Raises:
        UsageError: see `plan_evaluation` and `open_prepared`.
    """
    recipe = loaded.recipe
    prepared = None
    if load_benchmark(recipe.eval.benchmark).source is None:
        prepared = open_prepared(recipe, str(loaded.path))
    plan = plan_evaluation(loaded, prepared, tokenizer, configs, note)
    if prepared is None:
        return plan
    asked = [prompt.problem for prompt in plan.prompts]
    return replace(plan, contaminated=check_contamination(recipe, prepared.train, asked))


def describe_sampling(sampling: Sampling) -> str:
    """Every field that decides how responses are sampled, on one line; nothing comes from the checkpoint."""
    fields = {key: value for key, value in asdict(sampling).items() if key not in ("stop_token_ids", "stop_strings")}
    stops = f"stop at {list(sampling.stop_token_ids)}" + (
        f" or {list(sampling.stop_strings)}" if sampling.stop_strings else ""
    )
    return "sampling: " + ", ".join(f"{key} {value}" for key, value in fields.items()) + f"; {stops}"

"""Where a run begins: at the base model, at its own newest checkpoint, or at another run's; and its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.policy.model import generation_config_json
from dapo_cli.recipe.dump import to_yaml
from dapo_cli.recipe.keys import forbidden_on_resume, recipe_differences
from dapo_cli.recipe.loading import LoadedRecipe, load_recipe
from dapo_cli.recipe.schema import Recipe
from dapo_cli.run import directory, metrics
from dapo_cli.run.base_model import model_identity, refuse_other_base
from dapo_cli.run.checkpoints import Checkpoint, find_checkpoint, newest_complete, parse_run_reference
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note, write_atomic
from dapo_cli.run.manifest import build_manifest, describe_environment
from dapo_cli.run.recorder import move_evaluations_after
from dapo_cli.run.samples import move_rollouts_after
from dapo_cli.trainer import TrainState
from dapo_cli.workload import Workload


@dataclass(frozen=True, slots=True)
class Start:
    """How a run begins: a new folder, or where it goes on."""

    run_dir: Path
    resume: bool = False
    fresh: bool = False
    fork: str | None = None
    """RUN[@STEP] whose checkpoint a new run starts from."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What training continues from."""

    checkpoint: Checkpoint | None
    """None: the base model."""
    resuming: bool
    """An existing run goes on."""
    parent_metrics: tuple[metrics.Row, ...] = ()
    """Of a fork: its parent's lines up to the checkpoint."""

    @property
    def state(self) -> TrainState:
        """The loop's state there."""
        return TrainState(**self.checkpoint.state["train"]) if self.checkpoint else TrainState()


def find_start(loaded: LoadedRecipe, start: Start, note: Note) -> StartingPoint:
    """Where the run begins; nothing is written.

    Raises:
        UsageError: the run directory is in use, or a resume or fork does not fit the run it continues.
        DapoError: the checkpoint asked for is damaged.
    """
    if start.fork is not None:
        path, step = parse_run_reference(start.fork)
        parent = RunDirectory.open(path)
        if start.run_dir.resolve() == path.resolve():
            raise UsageError(f"--from: {path} is the run directory itself", hint="give another --run-dir DIR")
        if not start.fresh:
            directory.refuse_existing(start.run_dir)
        _refuse_other_model(loaded, parent)
        checkpoint = find_checkpoint(parent, step, note)
        rows = tuple(row for row in metrics.read(parent.metrics_file) if row["step"] <= checkpoint.step)
        return StartingPoint(checkpoint, resuming=False, parent_metrics=rows)
    if start.resume and directory.is_run(start.run_dir):
        run = RunDirectory.open(start.run_dir)
        _refuse_changes(loaded, run)
        newest = newest_complete(run, note)
        if newest is None and (fork := run.manifest()["forked_from"]) is not None:
            raise UsageError(
                f"{run.path}: was started from {fork} and has no complete checkpoint of its own",
                hint=f"--fresh --from {fork} starts it again",
            )
        return StartingPoint(newest, resuming=True)
    if not start.fresh:
        directory.refuse_existing(start.run_dir)
    return StartingPoint(None, resuming=False)


def _refuse_changes(loaded: LoadedRecipe, run: RunDirectory) -> None:
    old = load_recipe(run.recipe_file).recipe
    changes = forbidden_on_resume(recipe_differences(old, loaded.recipe))
    if changes:
        lines = "\n".join(f"  {change.key}: {change.old!r} in the run, {change.new!r} now" for change in changes)
        raise UsageError(
            f"{run.path}: --resume cannot change what the run has been trained with\n{lines}",
            hint=f"--from {run.path}@STEP --run-dir DIR starts a new run from its weights",
        )
    if loaded.recipe.model.lora is not None:
        refuse_other_base(run, loaded.recipe.model)


def _refuse_other_model(loaded: LoadedRecipe, parent: RunDirectory) -> None:
    old, new = load_recipe(parent.recipe_file).recipe, loaded.recipe
    if old.model.path != new.model.path:
        raise UsageError(f"--from: {parent.path} trained {old.model.path}, this recipe trains {new.model.path}")
    changes = [change for change in recipe_differences(old, new) if change.key.startswith("model.lora")]
    changes = [change for change in changes if change.key != "model.lora.sync"]
    if changes:
        lines = "\n".join(f"  {change.key}: {change.old!r} in {parent.path}, {change.new!r} here" for change in changes)
        raise UsageError(
            f"--from: the checkpoint is of other weights than this recipe trains\n{lines}",
            hint=f"set model.lora as it was there, or train what `dapo convert {parent.path} --out DIR` writes: "
            "--set model.path=DIR",
        )
    if new.model.lora is not None:
        refuse_other_base(parent, new.model)


def reopen_run(recipe: Recipe, start: Start, point: StartingPoint, note: Note) -> RunDirectory:
    """Open the run, whose lock is held, and move aside what was written after its checkpoint: no step appears twice."""
    run = RunDirectory.open(start.run_dir)
    step = point.checkpoint.step if point.checkpoint else None
    run.record_resume(step or 0, to_yaml(recipe), describe_environment())
    if step and not run.metrics_file.exists():
        note(f"{run.metrics_file}: is missing; the curve begins after step {step}")
    metrics.truncate_after(run.metrics_file, step, note)
    move_rollouts_after(run, step, note)
    move_evaluations_after(run, step, note)
    where = f"step {step}" if step is not None else "the start: there is no complete checkpoint"
    note(f"{run.path}: resuming at {where}")
    return run


def create_run(workload: Workload, resolved: str, start: Start, prompt: dict[str, Any], note: Note) -> RunDirectory:
    """Make the run directory, moving an old run aside for --fresh; `prompt` is the first one, for the manifest."""
    if start.fresh and (old := directory.fresh(start.run_dir)) is not None:
        note(f"{start.run_dir}: the old run is now {old}")
    manifest = build_manifest(
        model={"path": workload.recipe.model.path, **model_identity(resolved, workload.model_config)},
        data={file.name: file.sha256 for file in workload.prepared.card.files},
        first_prompt=prompt,
        contaminated=workload.contaminated,
        forked_from=start.fork,
    )
    return RunDirectory.create(start.run_dir, to_yaml(workload.recipe), manifest)


def take_over(run: RunDirectory, point: StartingPoint, note: Note) -> None:
    """Give a fork its parent's metrics up to the checkpoint, so that its curves begin at the base model."""
    if point.checkpoint is not None:
        write_atomic(run.metrics_file, "".join(json.dumps(row) + "\n" for row in point.parent_metrics))
        note(
            f"{run.path}: starting from {point.checkpoint.path}, with its {len(point.parent_metrics)} lines of metrics"
        )


def save_model_description(workload: Workload, run: RunDirectory) -> None:
    """Write `model/`: config, generation config and tokenizer of the base model, which checkpoints leave out."""
    folder = run.path / "model"
    workload.model_config.save_pretrained(folder)
    write_atomic(folder / "generation_config.json", generation_config_json(workload.generation_config))
    workload.tokenizer.save_pretrained(folder)

"""`dapo train`: from a recipe to a running loop. Cheap checks come first; nothing is written until all have passed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from dapo_cli.backend.hardware import check_hardware
from dapo_cli.backend.interface import Backend
from dapo_cli.dataset.load import open_prepared
from dapo_cli.dataset.stream import ProblemStream
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.evaluate import evaluate, from_engine
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.recipe.loading import LoadedRecipe
from dapo_cli.rollout.collect import Collector
from dapo_cli.rollout.prompts import describe_prompt
from dapo_cli.run import directory
from dapo_cli.run.checkpoints import saved_steps
from dapo_cli.run.console import Console
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.disk import check_room
from dapo_cli.run.files import Note
from dapo_cli.run.opening import (
    Start,
    StartingPoint,
    create_run,
    find_start,
    reopen_run,
    save_model_description,
    take_over,
)
from dapo_cli.run.preflight import check_scorers, describe_pass_rates
from dapo_cli.run.recorder import Recorder, evaluation_folder_name
from dapo_cli.run.signals import StopSignals
from dapo_cli.run.tracking import check_tracking, start_tracker
from dapo_cli.trainer import Evaluate, TrainState, train
from dapo_cli.workload import MODEL_CACHE, Workload, load_workload


@dataclass(frozen=True, slots=True)
class Finished:
    """What a training command leaves to be shown."""

    run: RunDirectory
    state: TrainState
    evaluation: EvaluationResult | None
    """The last one of this process."""
    already_finished: bool = False


def start_training(loaded: LoadedRecipe, reference: str, start: Start, note: Note) -> Finished:
    """Check everything, open or create the run directory, and train.

    `reference` is the recipe as it was typed, overrides included; errors repeat it in the commands they name.

    Raises:
        UsageError: recipe, data, model or run directory are not as they must be; the run directory is untouched.
        DapoError: the run failed; StopRequested when it was asked to stop. The newest state is in a checkpoint.
    """
    with ExitStack() as held:
        if start.resume and directory.is_run(start.run_dir):
            # Before a checkpoint is chosen: a process that still writes here would rotate it away.
            held.enter_context(RunDirectory.open(start.run_dir).lock(note))
        return _start(loaded, reference, start, note)


def _start(loaded: LoadedRecipe, reference: str, start: Start, note: Note) -> Finished:
    recipe = loaded.recipe
    check_hardware(recipe)
    check_tracking(recipe.tracking)
    load_benchmark(recipe.eval.benchmark)
    prepared = open_prepared(recipe, reference)
    check_scorers((*prepared.train, *prepared.heldout), recipe.prompt, recipe.reward, note)
    point = find_start(loaded, start, note)
    if point.resuming and point.state.step >= recipe.train.steps:
        return Finished(RunDirectory.open(start.run_dir), point.state, None, already_finished=True)

    from dapo_cli.policy.model import resolve_model

    resolved = resolve_model(recipe.model, MODEL_CACHE)
    workload = load_workload(loaded, prepared, resolved, note)
    prompt = describe_prompt(workload.train[0], workload.tokenizer, workload.sampling)
    show_prompt(prompt, note)
    stream = make_stream(workload, point, note)
    backend = make_backend(workload, resolved, note)
    try:
        if point.checkpoint is not None:
            backend.load(point.checkpoint.path)
        # Before the first rollout, and before anything is written: an engine without these weights is of no use.
        backend.sync_weights(point.state.step)
        there = len(saved_steps(RunDirectory(start.run_dir))) if point.resuming else 0
        check_room(start.run_dir, backend.trained_parameters, recipe.checkpoint, note, there)
        if point.resuming:
            return _run(workload, (backend, stream), reopen_run(recipe, start, point, note), point)
        run = create_run(workload, resolved, start, prompt, note)
        with run.lock(note):
            take_over(run, point, note)
            return _run(workload, (backend, stream), run, point)
    finally:
        backend.close()


def show_prompt(prompt: dict[str, Any], note: Note) -> None:
    """The first prompt as the engine sees it, its end, and what ends a response."""
    note(f"first prompt ({prompt['tokens']} tokens):\n{prompt['text']}")
    note(f"its last tokens: {prompt['last_tokens']} {prompt['last_token_ids']}")
    strings = f" or the strings {prompt['stop_strings']}" if prompt["stop_strings"] else ""
    note(f"a response ends at {prompt['stop_tokens']} {prompt['stop_token_ids']}{strings}")


def _run(
    workload: Workload, machinery: tuple[Backend, ProblemStream], run: RunDirectory, point: StartingPoint
) -> Finished:
    recipe = workload.recipe
    backend, stream = machinery
    save_model_description(workload, run)
    with Console(run.path.name, recipe.train.steps) as console, StopSignals(console.stopping) as signals:
        wandb_run_id = point.checkpoint.state["wandb_run_id"] if point.checkpoint and point.resuming else None
        try:
            tracker = start_tracker(recipe.tracking, run.path, recipe.model_dump(), wandb_run_id, console.note)
        except UsageError:
            if not point.resuming:
                shutil.rmtree(run.path)  # made a moment ago and empty but for its description
            raise
        recorder = Recorder(recipe, run, console, tracker, signals, workload.tokenizer.decode)
        collector = make_collector(workload, backend, stream, recorder.stop_if_requested)
        evaluate_step = make_evaluator(workload, backend, run)
        try:
            if point.checkpoint is not None and not point.resuming:
                recorder.save(point.state, backend, collector)
            if point.state.step == 0 and not recorder.has_lines:
                measure_baseline(workload, backend, evaluate_step, recorder)
            state = train(recipe, backend, collector, evaluate_step, recorder, point.state)
            recorder.finish_saving()
        finally:
            recorder.close()
            tracker.close()
    return Finished(run, state, recorder.last_evaluation)


def make_backend(workload: Workload, resolved: str, note: Note) -> Backend:
    """The backend the recipe asks for, its processes started and its weights loaded."""
    recipe = workload.recipe
    prompts = [prompt.prompt_ids for prompt in workload.train]
    backend: Backend
    if recipe.backend.kind == "ray":
        from dapo_cli.backend.ray_cluster import RayBackend

        vocabulary = workload.model_config.get_text_config().vocab_size
        backend = RayBackend(recipe, resolved, prompts, vocabulary, note)
    else:
        from dapo_cli.backend.local import LocalBackend

        backend = LocalBackend(recipe, resolved, workload.tokenizer, prompts, note)
    note(f"{recipe.model.path}: {backend.describe()}")
    return backend


def make_stream(workload: Workload, point: StartingPoint, note: Note) -> ProblemStream:
    """The stream of training problems, where the checkpoint left it.

    Raises:
        UsageError: a resumed run drew from other problems. A fork may: its stream then starts anew, which is said.
    """
    dataset = workload.recipe.dataset
    weights = {part.name: part.weight for part in dataset.parts if part.weight is not None}
    stream = ProblemStream([prompt.problem for prompt in workload.train], dataset.shuffle_seed, weights or None)
    if point.checkpoint is None:
        return stream
    saved = point.checkpoint.state["collector"]["stream"]
    if not point.resuming and saved["fingerprint"] != stream.state_dict()["fingerprint"]:
        note("other problems or another shuffle seed than in the run this starts from: the stream starts anew")
        return stream
    stream.load_state_dict(saved)
    return stream


def make_collector(
    workload: Workload, backend: Backend, stream: ProblemStream, check_stop: Callable[[], None]
) -> Collector:
    """The collector over the training problems that were rendered."""
    prompts = {prompt.problem.text: prompt for prompt in workload.train}
    return Collector(workload.recipe, backend, stream, prompts, workload.sampling, check_stop)


def make_evaluator(workload: Workload, backend: Backend, run: RunDirectory) -> Evaluate:
    """Evaluates the recipe's benchmark with the backend's engine, into the run's `evals/`."""
    plan, recipe = workload.evaluation, workload.recipe
    last = replace(plan, samples=recipe.eval.final_samples or plan.samples)

    def evaluate_step(step: int) -> EvaluationResult:
        settings = (last if step == recipe.train.steps else plan).settings(f"{run.path}@{step}")
        folder = run.evals / evaluation_folder_name(settings.benchmark, step)
        return evaluate(from_engine(backend.generate), plan.problems, settings, plan.reward, folder)

    return evaluate_step


def measure_baseline(workload: Workload, backend: Backend, evaluate_step: Evaluate, recorder: Recorder) -> None:
    """The line of step 0: pass rates of the first training problems, and the baseline evaluation."""
    recipe = workload.recipe
    with recorder.step(0):
        recorder.add({"updates": 0})
        if recipe.preflight.problems:
            with recorder.stage("preflight"):
                # A collector of its own: the pre-flight moves no stream position.
                stream = make_stream(workload, StartingPoint(None, resuming=False), recorder.note)
                collector = make_collector(workload, backend, stream, recorder.stop_if_requested)
                values, text = describe_pass_rates(collector.sample(recipe.preflight.problems), recipe)
            recorder.add(values)
            recorder.note(text)
        if recipe.eval.before_training:
            with recorder.stage("eval"):
                recorder.evaluation(evaluate_step(0))

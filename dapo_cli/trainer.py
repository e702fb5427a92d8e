"""The loop: rollout, reward and dynamic sampling, advantages, updates, weight sync, and now and then an evaluation.

It drives a backend and holds no tensor code, so the same loop runs in one process and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dapo_cli.algorithm.dynamic_sampling import pass_rates_in_words
from dapo_cli.algorithm.mismatch import logprob_mismatch
from dapo_cli.backend.interface import Backend
from dapo_cli.errors import DapoError
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.policy.batch import Batch, build_batch
from dapo_cli.recipe.derived import learning_rate
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.collect import Collector, StepGroups
from dapo_cli.run.recorder import Recorder
from dapo_cli.run.signals import StopRequested

Evaluate = Callable[[int], EvaluationResult]
"""Evaluates the policy as it is after a step."""


@dataclass(frozen=True, slots=True)
class TrainState:
    """Where a run is; with the backend's and the collector's own states, all that a resume needs."""

    step: int = 0
    """Finished rollout steps; also the version of the policy's weights."""
    updates: int = 0
    """Optimizer updates so far."""
    empty_steps: int = 0
    """Steps in a row without an informative group."""


class Diverged(DapoError):
    """Every update of a step had a non-finite gradient; nothing is saved over the last checkpoint."""


class NothingToLearn(DapoError):
    """The data gave too few informative groups; a checkpoint was written before this is raised."""


def train(
    recipe: Recipe, backend: Backend, collector: Collector, evaluate: Evaluate, recorder: Recorder, state: TrainState
) -> TrainState:
    """Train from `state` to `train.steps`; returns the final state.

    A stop writes a checkpoint of the last finished step first; a policy that diverged is not saved.

    Raises:
        Diverged: every update of a step had a non-finite gradient.
        StopRequested: Ctrl-C, SIGTERM or the recipe's time limit.
        NothingToLearn: by the recipe, too few informative groups stop the run.
    """
    backend.sync_weights(state.step)
    try:
        while state.step < recipe.train.steps:
            recorder.stop_if_requested()
            with recorder.step(state.step + 1):
                after = train_step(recipe, backend, collector, recorder, state)
                if evaluation_is_due(recipe, after.step):
                    with recorder.stage("eval"):
                        recorder.evaluation(evaluate(after.step))
            state = after
            if state.step % recipe.checkpoint.every == 0:
                recorder.save(state, backend, collector)
            if state.empty_steps >= recipe.dynamic_sampling.max_empty_steps:
                raise NothingToLearn(
                    f"step {state.step}: no informative group in {state.empty_steps} steps in a row",
                    hint="dapo check RECIPE; easier or harder problems, a larger rollout.group_size, or a higher "
                    "dynamic_sampling.max_drawn_problems",
                )
    except (StopRequested, NothingToLearn):
        recorder.save(state, backend, collector)
        raise
    recorder.save(state, backend, collector)
    return state


def train_step(
    recipe: Recipe, backend: Backend, collector: Collector, recorder: Recorder, state: TrainState
) -> TrainState:
    """One round from rollouts to synced weights; returns the state after it."""
    step, updates = state.step + 1, state.updates
    with recorder.stage("generate"):
        groups = collector.next_step()
    recorder.rollouts(step, groups.drawn, groups.kept)
    report_exhaustion(recipe, step, groups, recorder)
    if groups.kept:
        with recorder.stage("logprobs"):
            batch = build_batch(groups.kept, recipe)
            batch = batch.with_old_logprobs(backend.logprobs(batch))
            recorder.add(mismatch_metrics(batch) | advantage_metrics(batch))
        with recorder.stage("update"):
            for minibatch in batch.minibatches(recipe.train.prompts_per_minibatch):
                update = backend.update(minibatch, learning_rate(recipe.train, step))
                recorder.add(update)
                updates += not update["update/skipped_count"]
        if updates == state.updates:
            raise Diverged(
                f"step {step}: every update had a non-finite loss or gradient and was skipped: the policy has diverged",
                hint="--from an earlier checkpoint, with a lower train.learning_rate or train.weight_decay",
            )
    with recorder.stage("sync"):
        recorder.add(backend.sync_weights(step))
    empty_steps = 0 if groups.kept else state.empty_steps + 1
    recorder.add({"updates": updates, "update/empty_steps_in_a_row": empty_steps})
    recorder.add({"rollout/epochs": collector.stream.epochs})
    return replace(state, step=step, updates=updates, empty_steps=empty_steps)


def evaluation_is_due(recipe: Recipe, step: int) -> bool:
    """Whether the policy is evaluated after `step`."""
    last = step == recipe.train.steps and recipe.eval.after_training
    return last or (recipe.eval.every is not None and step % recipe.eval.every == 0)


def report_exhaustion(recipe: Recipe, step: int, groups: StepGroups, recorder: Recorder) -> None:
    """Say what the pass rates were when the bound on drawn problems was reached, and stop if the recipe wants that.

    Raises:
        NothingToLearn: `dynamic_sampling.when_exhausted` is stop.
    """
    if not groups.exhausted:
        return
    rates = pass_rates_in_words([group.num_correct for group in groups.drawn], recipe.rollout.group_size)
    found = (
        f"step {step}: {len(groups.kept)} of {recipe.train.prompts_per_step} groups after "
        f"{len(groups.drawn)} problems; groups by right answers: {rates}"
    )
    if recipe.dynamic_sampling.when_exhausted == "stop":
        raise NothingToLearn(found, hint="dynamic_sampling.when_exhausted: smaller_step trains on what was found")
    recorder.note(f"{found}; {'training on the smaller step' if groups.kept else 'no update in this step'}")


def advantage_metrics(batch: Batch) -> dict[str, float]:
    """Mean over response tokens, smallest and largest advantage of a batch."""
    weights = batch.response_lengths / batch.response_lengths.sum()
    return {
        "advantage/mean": float((batch.advantages * weights).sum()),
        "advantage/min": float(batch.advantages.min()),
        "advantage/max": float(batch.advantages.max()),
    }


def mismatch_metrics(batch: Batch) -> dict[str, float]:
    """`rollout/logprob_mismatch_*` of a batch that has its old log-probs."""
    assert batch.old_logprobs is not None
    mismatch = logprob_mismatch(batch.old_logprobs, batch.rollout_logprobs)
    return {f"rollout/logprob_mismatch_{name}": value for name, value in mismatch.items()}

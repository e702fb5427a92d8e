"""What can be asked of `dapo infer`, and which questions contradict themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dapo_cli.errors import UsageError

READ_KEYS = (
    "model.",
    "prompt.",
    "reward.",
    "backend.device",
    "backend.threads",
    "eval.engine",
    "eval.files",
    "eval.model",
    "eval.tensor_parallel",
    "rollout.enforce_eager",
    "rollout.gpu_memory_utilization",
    "rollout.max_concurrent_rollouts",
    "rollout.stop_",
)
"""Beginnings of the recipe keys that an inference reads; any other is refused in --set."""

_OPTIONS = {
    "rollout.max_response_tokens": "--max-response-tokens",
    "eval.max_response_tokens": "--max-response-tokens",
    "rollout.temperature": "--temperature",
    "rollout.top_p": "--top-p",
    "rollout.seed": "--seed",
    "rollout.engine": "--engine",
    "rollout.tensor_parallel": "--set eval.tensor_parallel=N",
    "eval.samples": "--samples",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """The options of `dapo infer`, as they were typed; None: not given."""

    problem: str | None = None
    """`-`, or nothing while standard input is not a terminal: read it from there."""
    recipe: str | None = None
    model: str | None = None
    run: str | None = None
    file: Path | None = None
    problem_column: str | None = None
    answer_column: str | None = None
    gold: str | None = None
    example: bool = False
    samples: int = 1
    max_response_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0
    out: Path | None = None
    engine: Literal["hf", "vllm"] | None = None
    overrides: tuple[str, ...] = ()


def check_options(options: InferenceOptions) -> None:
    """Refuse options that exclude each other, have no effect, or are out of range.

    Raises:
        UsageError: the first such.
    """
    _exclude(PROBLEM=options.problem, file=options.file, example=options.example)
    _exclude(model=options.model, run=options.run)
    _exclude(recipe=options.recipe, run=options.run)
    _exclude(gold=options.gold, file=options.file, example=options.example)
    for name, column in (("problem", options.problem_column), ("answer", options.answer_column)):
        if column is not None and options.file is None:
            raise UsageError(f"--{name}-column needs --file FILE")
    if options.samples < 1:
        raise UsageError(f"--samples: want 1 or more, got {options.samples}")
    if options.max_response_tokens is not None and options.max_response_tokens < 1:
        raise UsageError(f"--max-response-tokens: want 1 or more, got {options.max_response_tokens}")
    if options.temperature is not None and not 0 < options.temperature < float("inf"):
        raise UsageError(f"--temperature: want a number above 0, got {options.temperature:g}")
    if options.top_p is not None and not 0 < options.top_p <= 1:
        raise UsageError(f"--top-p: want above 0 and at most 1, got {options.top_p:g}")
    if options.engine not in (None, "hf", "vllm"):
        raise UsageError(f"--engine: want hf or vllm, got {options.engine}")
    _check_overrides(options)


def _exclude(**given: object) -> None:
    named = [name if name.isupper() else f"--{name}" for name, value in given.items() if value not in (None, False)]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other")


def _check_overrides(options: InferenceOptions) -> None:
    for override in options.overrides:
        key = override.partition("=")[0].strip()
        if not key.startswith(READ_KEYS):
            instead = _OPTIONS.get(key)
            known = ", ".join(f"{each}*" if each[-1] in "._" else each for each in READ_KEYS)
            hint = f"use {instead}" if instead else f"what it reads: {known}"
            raise UsageError(f"--set {override}: dapo infer does not read {key}", hint=hint)
        if key == "eval.engine" and options.engine is not None:
            raise UsageError("--engine and --set eval.engine exclude each other")
        if options.run is not None and key.startswith(("model.", "eval.model")) and key != "model.dtype":
            raise UsageError(f"--set {override}: the model of a run is its own", hint="dapo infer --model PATH")

"""From the options to everything that decides a response: weights, rendered prompts and stated sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from dapo_cli.backend.local import pick_device
from dapo_cli.dataset.prompt_template import NAMED
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.command import subject_of_run
from dapo_cli.evaluation.engines import Subject
from dapo_cli.export.policy_folder import weights_hash
from dapo_cli.inference.options import InferenceOptions
from dapo_cli.inference.problems import example_problems, file_problems, typed_problem
from dapo_cli.policy.model import load_model, load_tokenizer, max_positions, resolve_model
from dapo_cli.policy.sharded_load import local_model_folder
from dapo_cli.recipe.loading import LoadedRecipe, load_recipe
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.prompts import PromptRenderer, RenderedPrompt, stop_token_ids
from dapo_cli.run.checkpoints import Checkpoint, find_checkpoint, parse_run_reference
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note
from dapo_cli.types import Problem, Sampling
from dapo_cli.workload import MODEL_CACHE, check_stop_ids, load_configs

DEFAULT_RECIPE = "dapo_qwen32b"
CARD = "aime_2024"
"""The benchmark whose sampling is that of the public inference example, and which has its problems."""
GPU_MEMORY_SHARE = 0.95
"""Of the public inference example: nothing else runs beside the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What is asked of which weights, and how."""

    recipe: Recipe
    subject: Subject
    tokenizer: Any
    prompts: tuple[RenderedPrompt, ...]
    sampling: Sampling

    @property
    def template(self) -> str:
        """The name of the prompt template, or `own`."""
        return self.recipe.prompt.template if self.recipe.prompt.template in NAMED else "own"


def open_setup(options: InferenceOptions, stdin: TextIO, note: Note) -> Setup:
    """Load recipe, tokenizer and configs and render the prompts; no weights are loaded yet.

    Raises:
        UsageError: the recipe, the model or the problems cannot be had, or prompt and response do not fit the model.
    """
    loaded, run = _load_recipe(options, note)
    if run is not None:
        subject = subject_of_run(loaded, *run)
    else:
        subject = _subject_of_model(loaded, named=options.out is not None or options.file is not None)
    recipe = loaded.recipe
    problems = _problems(options, recipe, stdin, note)
    tokenizer = load_tokenizer(subject.source, recipe.model)
    config, generation_config = load_configs(subject.source, recipe)
    stops = stop_token_ids(recipe.rollout, generation_config)
    check_stop_ids(loaded, stops, config)
    renderer = PromptRenderer(tokenizer, recipe.prompt)
    prompts = tuple(renderer.render(problem) for problem in problems)
    longest = max(len(prompt.prompt_ids) for prompt in prompts)
    limit = response_limit(options.max_response_tokens, longest, max_positions(config), recipe.model.path, note)
    usual = load_benchmark(CARD).resolve_sampling(limit, stops, recipe.rollout.stop_strings)
    sampling = replace(
        usual,
        max_response_tokens=limit,
        temperature=usual.temperature if options.temperature is None else options.temperature,
        top_p=usual.top_p if options.top_p is None else options.top_p,
    )
    return Setup(_sized(recipe, longest, limit, len(prompts) * options.samples), subject, tokenizer, prompts, sampling)


def response_limit(asked: int | None, prompt_tokens: int, positions: int | None, model: str, note: Note) -> int:
    """The longest response: as asked, else the public example's 20,480 or what the model has positions for.

    >>> response_limit(None, 100, 512, "toy", print)
    responses of at most 412 tokens, not 20480: toy has 512 positions, the longest prompt takes 100
    412

    Raises:
        UsageError: prompt and response do not fit.
    """
    usual = load_benchmark(CARD).sampling.max_response_tokens
    assert usual is not None
    if positions is None:
        return asked or usual
    room = positions - prompt_tokens
    if room < (asked or 1):
        raise UsageError(
            f"a prompt of {prompt_tokens} tokens and a response of {asked or 1} do not fit the {positions} positions "
            f"of {model}",
            hint=f"--max-response-tokens {room}" if room > 0 else "ask a shorter problem",
        )
    if asked is None and room < usual:
        note(
            f"responses of at most {room} tokens, not {usual}: {model} has {positions} positions, the longest prompt "
            f"takes {prompt_tokens}"
        )
    return asked or min(usual, room)


def _load_recipe(options: InferenceOptions, note: Note) -> tuple[LoadedRecipe, tuple[RunDirectory, Checkpoint] | None]:
    overrides = [*options.overrides, *([f"eval.engine={options.engine}"] if options.engine else [])]
    if options.run is not None:
        path, step = parse_run_reference(options.run)
        directory = RunDirectory.open(path)
        loaded = load_recipe(directory.recipe_file, overrides)
        return _for_inference(loaded, options, note), (directory, find_checkpoint(directory, step, note))
    loaded = load_recipe(options.recipe or DEFAULT_RECIPE, overrides)
    if options.recipe is not None:
        for text in loaded.notes:
            note(text)
    return _for_inference(loaded, options, note), None


def _for_inference(loaded: LoadedRecipe, options: InferenceOptions, note: Note) -> LoadedRecipe:
    """The recipe with the model that is asked, its precision, and without what only training needs."""
    recipe = loaded.recipe
    stated = {key for key, origin in loaded.origins.items() if origin.kind == "set"}
    by_default = options.recipe is None and options.run is None
    changes: dict[str, Any] = {"activation_checkpointing": False}
    if options.run is None:
        path = options.model or ("model.path" not in stated and recipe.eval.model) or recipe.model.path
        kept = path == recipe.model.path or "model.revision" in stated
        # What is named on the command line is whole: an engine must not wait for adapters.
        changes |= {"path": path, "revision": recipe.model.revision if kept else None, "lora": None}
    cpu = pick_device(recipe.backend).type == "cpu"
    if by_default and cpu and "model.dtype" not in stated:
        note("on a CPU: float32, which is faster there than the public example's bfloat16; --set model.dtype=bfloat16")
        changes["dtype"] = "float32"
    rollout = recipe.rollout
    if by_default and "rollout.gpu_memory_utilization" not in stated:
        rollout = rollout.model_copy(update={"gpu_memory_utilization": GPU_MEMORY_SHARE})
    sections: dict[str, Any] = {"model": recipe.model.model_copy(update=changes), "rollout": rollout}
    if options.example:
        card = load_benchmark(CARD)
        sections |= {"prompt": card.prompt(recipe.prompt), "reward": card.reward(recipe.reward)}
    return replace(loaded, recipe=recipe.model_copy(update=sections))


def _subject_of_model(loaded: LoadedRecipe, *, named: bool) -> Subject:
    """The recipe's model; `named`: by the hash of its weights, which reads them all."""
    recipe = loaded.recipe
    resolved = resolve_model(recipe.model, MODEL_CACHE)
    folder = local_model_folder(resolved, recipe.model.revision)
    name = recipe.model.path
    if named:
        name += f"#{(weights_hash(folder) if Path(resolved).is_dir() else folder.name)[:12]}"

    def load() -> Any:
        return load_model(resolved, recipe.model, pick_device(recipe.backend))

    return Subject(resolved, name, load, folder)


def _problems(options: InferenceOptions, recipe: Recipe, stdin: TextIO, note: Note) -> Sequence[Problem]:
    if options.example:
        return example_problems(load_benchmark(CARD), recipe.eval.files, recipe.prompt.template)
    if options.file is not None:
        return file_problems(options.file, options, recipe.prompt.template, note)
    return [typed_problem(options, stdin, recipe.prompt.template, note)]


def _sized(recipe: Recipe, prompt_tokens: int, response_tokens: int, responses: int) -> Recipe:
    """The recipe with an engine of the size of this inference, and a whole model: adapters are merged in."""
    side_by_side = min(recipe.rollout.max_concurrent_rollouts, responses)
    changes = {
        "model": recipe.model.model_copy(update={"lora": None}),
        "prompt": recipe.prompt.model_copy(update={"max_prompt_tokens": prompt_tokens}),
        "rollout": recipe.rollout.model_copy(
            update={"max_response_tokens": response_tokens, "max_concurrent_rollouts": side_by_side}
        ),
        "eval": recipe.eval.model_copy(update={"max_response_tokens": None}),
    }
    return recipe.model_copy(update=changes)

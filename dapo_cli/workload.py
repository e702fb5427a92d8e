"""What a run or an evaluation works on: model, tokenizer, rendered problems and stated sampling, from one recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo_cli.dataset.identity import overlap
from dapo_cli.dataset.load import Prepared
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.plan import EvaluationPlan, plan_evaluation, render, with_card_values
from dapo_cli.hub import has_model_file
from dapo_cli.policy.model import load_part, load_tokenizer, max_positions
from dapo_cli.recipe.loading import LoadedRecipe, key_error
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.prompts import PromptRenderer, RenderedPrompt, stop_token_ids, training_sampling
from dapo_cli.types import Problem, Sampling

MODEL_CACHE = Path("runs") / "_models"


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Rendered problems and how to sample for them."""

    loaded: LoadedRecipe
    prepared: Prepared
    tokenizer: Any
    model_config: Any
    generation_config: Any
    train: tuple[RenderedPrompt, ...]
    evaluation: EvaluationPlan
    sampling: Sampling

    @property
    def recipe(self) -> Recipe:
        """The recipe itself."""
        return self.loaded.recipe

    @property
    def contaminated(self) -> bool:
        """Whether problems of the benchmark are trained on."""
        return self.evaluation.contaminated


def check_contamination(recipe: Recipe, train: Sequence[Problem], asked: Sequence[Problem]) -> bool:
    """Whether training problems are among the benchmark's, compared on letters and digits.

    Raises:
        UsageError: they are, and the recipe does not allow it.
    """
    common = overlap({id(problem): problem for problem in train}.values(), asked)
    if common and not recipe.dataset.allow_benchmark_overlap:
        raise UsageError(
            f"dataset: {len(common)} training problems are in the benchmark {recipe.eval.benchmark}: "
            f"{', '.join(common[:3])}",
            hint="prepare the data with dataset.overlapping_problems: drop, or set dataset.allow_benchmark_overlap: "
            "true; every report then says CONTAMINATED",
        )
    return bool(common)


def check_toy_warm_start(prepared: Prepared) -> None:
    """The toy model must not have been shown the answers of held-out problems.

    Raises:
        UsageError: more problems are held out than its warm start left untouched.
    """
    from dapo_cli.toy.task import RESERVED_PROBLEMS, warm_start_problem_ids

    seen = warm_start_problem_ids()
    common = sum(problem.problem_id in seen for problem in prepared.heldout)
    if common:
        raise UsageError(
            f"dataset.heldout_problems: the toy model's warm start has seen {common} of the "
            f"{len(prepared.heldout)} held-out problems",
            hint=f"hold out at most {RESERVED_PROBLEMS} of toy_sums; in data of your own, use other problems than "
            "sums of two two-digit numbers",
        )


def load_workload(
    loaded: LoadedRecipe, prepared: Prepared, resolved_model: str, note: Callable[[str], None]
) -> Workload:
    """Load tokenizer and configs, check positions, and render every problem; no weights are read.

    Raises:
        UsageError: a prompt is too long, or prompt and response do not fit the model's positions.
    """
    loaded = with_card_values(loaded)
    recipe = loaded.recipe
    if recipe.model.path == "toy":
        check_toy_warm_start(prepared)
    config, generation_config = load_configs(resolved_model, recipe)
    check_positions(loaded, config)
    stop_ids = stop_token_ids(recipe.rollout, generation_config)
    check_stop_ids(loaded, stop_ids, config)
    tokenizer = load_tokenizer(resolved_model, recipe.model)
    evaluation = plan_evaluation(loaded, prepared, tokenizer, (config, generation_config), note)
    asked = [prompt.problem for prompt in evaluation.prompts]
    contaminated = check_contamination(recipe, prepared.train, asked)
    return Workload(
        loaded=loaded,
        prepared=prepared,
        tokenizer=tokenizer,
        model_config=config,
        generation_config=generation_config,
        train=render(PromptRenderer(tokenizer, recipe.prompt), prepared.train, "training", note),
        evaluation=replace(evaluation, contaminated=contaminated),
        sampling=training_sampling(recipe.rollout, stop_ids),
    )


def load_configs(resolved_model: str, recipe: Recipe) -> tuple[Any, Any]:
    """The model's config and generation config (an empty one where the checkpoint has none).

    Raises:
        UsageError: there is no config that transformers can read, or it cannot be had from the hub.
    """
    from transformers import AutoConfig, GenerationConfig

    model = recipe.model
    config = load_part(
        lambda commit: AutoConfig.from_pretrained(resolved_model, revision=commit), resolved_model, model
    )
    if not has_model_file(resolved_model, model.revision, "generation_config.json"):
        return config, GenerationConfig.from_model_config(config)
    return config, load_part(
        lambda commit: GenerationConfig.from_pretrained(resolved_model, revision=commit), resolved_model, model
    )


def check_stop_ids(loaded: LoadedRecipe, stop_ids: tuple[int, ...], config: Any) -> None:
    """Every stop token must be one the model can produce.

    Raises:
        UsageError: one is outside the vocabulary.
    """
    vocabulary = config.get_text_config().vocab_size
    outside = [token for token in stop_ids if token >= vocabulary]
    if outside:
        raise key_error(loaded, "rollout.stop_token_ids", f"{outside} are outside the model's {vocabulary} tokens")


def check_positions(loaded: LoadedRecipe, config: Any) -> None:
    """Prompt and response must fit the positions the model was made for.

    Raises:
        UsageError: they do not.
    """
    recipe = loaded.recipe
    positions = max_positions(config)
    longest = recipe.prompt.max_prompt_tokens + recipe.rollout.max_response_tokens
    if positions is not None and longest > positions:
        raise key_error(
            loaded,
            ("rollout.max_response_tokens", "prompt.max_prompt_tokens"),
            f"prompt of {recipe.prompt.max_prompt_tokens} + response of {recipe.rollout.max_response_tokens} = "
            f"{longest} tokens, but {recipe.model.path} has {positions} positions",
            hint=f"lower one of them so that the sum is at most {positions}",
        )

"""What an evaluation asks and how: the benchmark's problems rendered for a model, sampling, scorer, all stated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.load import Prepared
from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.errors import UsageError
from dapo_cli.evaluation.benchmark import Benchmark, load_benchmark
from dapo_cli.evaluation.benchmark_problems import load_problems
from dapo_cli.evaluation.evaluate import PromptedProblem
from dapo_cli.evaluation.result import EvaluationSettings
from dapo_cli.policy.model import max_positions
from dapo_cli.recipe.loading import LoadedRecipe, key_error
from dapo_cli.recipe.schema import Reward
from dapo_cli.rollout.prompts import PromptRenderer, RenderedPrompt, stop_token_ids
from dapo_cli.types import Problem, Sampling

DEFAULT_SAMPLES = 4


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationPlan:
    """One benchmark for one tokenizer."""

    benchmark: Benchmark
    prompts: tuple[RenderedPrompt, ...]
    samples: int
    sampling: Sampling
    reward: Reward
    seed: int
    dataset: str
    dataset_hash: str
    contaminated: bool = False

    @property
    def problems(self) -> list[PromptedProblem]:
        """Every problem with its prompt ids."""
        return [(prompt.problem, prompt.prompt_ids) for prompt in self.prompts]

    def settings(self, model: str) -> EvaluationSettings:
        """Everything that decides the result; `model` names the weights."""
        return EvaluationSettings(
            benchmark=self.benchmark.name,
            samples=self.samples,
            sampling=self.sampling,
            seed=self.seed,
            model=model,
            dataset=self.dataset,
            dataset_hash=self.dataset_hash,
            contaminated=self.contaminated,
        )


def with_card_values(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe with `eval.samples` and `eval.max_response_tokens` filled in from the benchmark's card where null.

    Raises:
        UsageError: there is no such card.
    """
    evaluation = loaded.recipe.eval
    card = load_benchmark(evaluation.benchmark)
    limit = evaluation.max_response_tokens or card.sampling.max_response_tokens
    changes = {
        "samples": evaluation.samples or card.samples or DEFAULT_SAMPLES,
        "max_response_tokens": limit or loaded.recipe.rollout.max_response_tokens,
    }
    filled = evaluation.model_copy(update=changes)
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"eval": filled}))


def plan_evaluation(
    loaded: LoadedRecipe,
    prepared: Prepared | None,
    tokenizer: Any,
    configs: tuple[Any, Any],
    note: Callable[[str], None],
) -> EvaluationPlan:
    """The recipe's benchmark, rendered. `configs` are the model's config and generation config.

    `loaded` comes from `with_card_values`; `prepared` is needed where the benchmark is `heldout`.

    Raises:
        UsageError: the benchmark cannot be had, a prompt is too long, or prompt and response do not fit the model.
    """
    recipe, (config, generation_config) = loaded.recipe, configs
    benchmark = load_benchmark(recipe.eval.benchmark)
    prompt = benchmark.prompt(recipe.prompt)
    if benchmark.source is None:
        assert prepared is not None, "the held-out problems are in the prepared data"
        problems, dataset, identity = prepared.heldout, prepared.card.name, prepared.card.settings_hash
    else:
        found = load_problems(benchmark, recipe.eval.files, template_text(prompt.template))
        problems, dataset, identity = found.problems, benchmark.name, _identity(found.problems)
        note(f"{benchmark.name}: {len(problems)} problems from {found.rows} rows of {found.origin}")
        if found.rewritten:
            note(f"{benchmark.name}: {found.rewritten} answers written as plain integers (034, 34.0 -> 34)")
    if recipe.eval.problems is not None and recipe.eval.problems > len(problems):
        note(f"eval.problems: {recipe.eval.problems} asked for, there are {len(problems)}: all are taken")
    limit, own = recipe.eval.max_response_tokens, benchmark.sampling.max_response_tokens
    assert recipe.eval.samples is not None
    assert limit is not None
    if own not in (None, limit):
        note(f"{benchmark.name}: responses of at most {limit} tokens; published scores allow {own}")
    prompts = render(PromptRenderer(tokenizer, prompt), problems[: recipe.eval.problems], "evaluation", note)
    check_fits(loaded, prompts, limit, config)
    stops = stop_token_ids(recipe.rollout, generation_config)
    return EvaluationPlan(
        benchmark=benchmark,
        prompts=prompts,
        samples=recipe.eval.samples,
        sampling=benchmark.resolve_sampling(limit, stops, recipe.rollout.stop_strings),
        reward=benchmark.reward(recipe.reward),
        seed=recipe.rollout.seed,
        dataset=dataset,
        dataset_hash=identity,
    )


def _identity(problems: Sequence[Problem]) -> str:
    """One hash of a benchmark's problems and answers."""
    return problem_id("\n".join(f"{problem.problem_id} {problem.ground_truth}" for problem in problems))[:12]


def render(
    renderer: PromptRenderer, problems: Sequence[Problem], kind: str, note: Callable[[str], None]
) -> tuple[RenderedPrompt, ...]:
    """Every prompt that fits prompt.max_prompt_tokens; `kind` is for the message about dropped ones.

    Raises:
        UsageError: a prompt is too long and is not to be dropped, or all prompts are the same text.
    """
    if not problems:
        return ()
    prompts, dropped = renderer.render_all(problems)
    several = len({problem.text for problem in problems}) > 1
    if several and len(prompts) > 1 and len({prompt.text for prompt in prompts}) == 1:
        raise UsageError(
            f"prompt: all {len(prompts)} {kind} prompts are the same text: the template leaves the problem out"
        )
    if dropped:
        note(f"{dropped} of {len(problems)} {kind} problems dropped: longer than prompt.max_prompt_tokens")
    return tuple(prompts)


def check_fits(loaded: LoadedRecipe, prompts: Sequence[RenderedPrompt], limit: int, config: Any) -> None:
    """Prompt and response must fit the positions the model was made for.

    Raises:
        UsageError: they do not.
    """
    positions = max_positions(config)
    longest = max((len(prompt.prompt_ids) for prompt in prompts), default=0)
    if positions is not None and longest + limit > positions:
        raise key_error(
            loaded,
            ("eval.max_response_tokens", "rollout.max_response_tokens"),
            f"the longest prompt of {loaded.recipe.eval.benchmark} ({longest} tokens) and a response of {limit} tokens "
            f"do not fit the {positions} positions of {loaded.recipe.model.path}",
            hint=f"set eval.max_response_tokens to at most {positions - longest}; it is shown and recorded",
        )

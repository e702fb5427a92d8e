"""Benchmark cards: evals/<name>.yaml says which problems are asked, how, and what others scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dapo_cli.dataset.cards import FileColumns, HubFiles
from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Prompt, Reward
from dapo_cli.resources import resource_folder
from dapo_cli.types import Sampling


class _Card(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BenchmarkSampling(_Card):
    """How responses are sampled. Every field is required: nothing comes from a checkpoint or from a default."""

    temperature: float = Field(gt=0, allow_inf_nan=False)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0, description="0: no limit.")
    min_p: float = Field(ge=0, le=1)
    max_response_tokens: int | None = Field(gt=0, description="null: the recipe's rollout.max_response_tokens.")


class BenchmarkSource(_Card):
    """Where the problems are, and how to know that they are the right ones."""

    hub: HubFiles | None = Field(default=None, strict=False)
    columns: FileColumns = FileColumns()
    problems: int = Field(gt=0, description="Distinct problems; any other number is refused.")
    answers_sha256: str | None = Field(
        default=None, description="First 16 hex digits over the sorted answers, a line each; null: not checked."
    )
    integer_answers: bool = Field(default=False, description="Every answer has to be an integer.")


class PublishedScore(_Card):
    """What others measured on this benchmark."""

    name: str
    score: float = Field(ge=0, le=100, description="Percent.")
    samples: int = Field(gt=0, description="The n of its avg@n.")
    source: str


class Benchmark(_Card):
    """One card in evals/."""

    name: str
    description: str
    problems: Literal["heldout"] | BenchmarkSource = Field(
        description="heldout: the held-out split of the recipe's own dataset. Else where they come from."
    )
    template: str | None = Field(default=None, description="As prompt.template; null: the recipe's prompt as it is.")
    scorer: str | list[str] | None = Field(default=None, description="As reward.scorer; null: the recipe's.")
    samples: int | None = Field(default=None, gt=0, description="Responses per problem of the published scores.")
    sampling: BenchmarkSampling
    published: list[PublishedScore] = []

    @model_validator(mode="after")
    def _prompt_and_scorer(self) -> Benchmark:
        if (self.template is None) != (self.scorer is None):
            raise ValueError("template and scorer belong together: the prompt asks for what the scorer reads")
        return self

    @property
    def source(self) -> BenchmarkSource | None:
        """Where the problems are; None for the recipe's own held-out ones."""
        return None if isinstance(self.problems, str) else self.problems

    def prompt(self, own: Prompt) -> Prompt:
        """The recipe's prompt section with the card's template and without few-shot examples, if the card has one.

        A problem of a published benchmark is never dropped for its length.
        """
        if self.source is not None:
            own = own.model_copy(update={"long_prompts": "refuse"})
        return own if self.template is None else own.model_copy(update={"template": self.template, "few_shot": ()})

    def reward(self, own: Reward) -> Reward:
        """The recipe's reward section with the card's scorer, if it has one."""
        if self.scorer is None:
            return own
        scorer = self.scorer if isinstance(self.scorer, str) else tuple(self.scorer)
        return own.model_copy(update={"scorer": scorer, "response_prefix": ""})

    def resolve_sampling(
        self, max_response_tokens: int, stop_token_ids: tuple[int, ...], stop_strings: tuple[str, ...]
    ) -> Sampling:
        """The card's sampling with the limit and the stops given, and no penalties."""
        return Sampling(
            max_response_tokens=max_response_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            min_p=self.sampling.min_p,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            stop_token_ids=stop_token_ids,
            stop_strings=stop_strings,
        )


def benchmark_names() -> list[str]:
    """Names of all packaged cards, sorted."""
    return sorted(card.stem for card in resource_folder("evals").glob("*.yaml"))


def load_benchmark(name: str) -> Benchmark:
    """Read the card evals/<name>.yaml, or a card of one's own where `name` is a path that ends with .yaml.

    Raises:
        UsageError: no such card, or a card that is not valid; each wrong key is named.
    """
    own = name.endswith((".yaml", ".yml"))
    path = Path(name) if own else resource_folder("evals") / f"{name}.yaml"
    shown = name if own else f"evals/{name}.yaml"
    if not path.is_file() or (not own and name not in benchmark_names()):
        hint = f"Cards: {', '.join(benchmark_names())}. A card of your own is named by its path, x.yaml."
        raise UsageError(f"eval.benchmark: no card {shown}", hint=hint)
    try:
        card = Benchmark.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"{shown}: not valid YAML: {error}") from error
    except ValidationError as error:
        lines = "\n".join(f"  {_where(e['loc'])}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise UsageError(f"{shown}: not a valid benchmark card\n{lines}") from error
    if card.name != path.stem:
        raise UsageError(f"{shown}: name: must be the file's name {path.stem!r}, got {card.name!r}")
    return card


def _where(location: tuple[Any, ...]) -> str:
    """The key of a pydantic location, without the marks it adds for alternatives."""
    return ".".join(str(part) for part in location if not str(part).startswith(("literal[", "BenchmarkSource")))

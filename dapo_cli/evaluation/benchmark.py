"""Benchmark cards: evals/<name>.yaml says which problems are asked and how responses are sampled."""

from __future__ import annotations

from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dapo_cli.errors import UsageError
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


class Benchmark(_Card):
    """One card in evals/."""

    name: str
    description: str
    problems: Literal["heldout"] = Field(description="heldout: the held-out split of the recipe's own dataset.")
    sampling: BenchmarkSampling

    def resolve_sampling(
        self, max_response_tokens: int, stop_token_ids: tuple[int, ...], stop_strings: tuple[str, ...]
    ) -> Sampling:
        """The card's sampling with the recipe's limit where the card has none, the stops given, and no penalties."""
        return Sampling(
            max_response_tokens=self.sampling.max_response_tokens or max_response_tokens,
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


def load_benchmark(name: str) -> Benchmark:
    """Read the card evals/<name>.yaml.

    Raises:
        UsageError: no such card, or a card that is not valid; each wrong key is named.
    """
    folder = resource_folder("evals")
    known = sorted(card.stem for card in folder.glob("*.yaml"))
    if name not in known:
        raise UsageError(f"eval.benchmark: no card evals/{name}.yaml", hint=f"Cards: {', '.join(known)}.")
    try:
        card = Benchmark.model_validate(yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"evals/{name}.yaml: not valid YAML: {error}") from error
    except ValidationError as error:
        lines = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise UsageError(f"evals/{name}.yaml: not a valid benchmark card\n{lines}") from error
    if card.name != name:
        raise UsageError(f"evals/{name}.yaml: name: must be the file's name {name!r}, got {card.name!r}")
    return card

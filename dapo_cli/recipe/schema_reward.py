"""The section `reward` of the recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dapo_cli.recipe.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class Reward(Section):
    """How a response is judged."""

    scorer: str | tuple[str, ...] = Field(
        default="dapo",
        description="dapo (the public rule of May 2025, +1 right and -1 wrong), dapo_2026_08 (the same with a boxed "
        "fallback), boxed, integer, math_verify, or module:function of your own. Of a list the first that finds an "
        "answer decides.",
    )
    response_prefix: str = Field(
        default="",
        description="Text put before the response when scoring, for prompts that end with the answer's first words.",
    )
    on_verifier_error: Literal["exclude", "wrong"] = Field(
        default="exclude",
        description="A response without a verdict (time, memory, a scorer's own failure): leave its rollout out of the "
        "loss and of its group's statistics, or call it wrong.",
    )
    workers: PositiveInt = Field(default=4, description="Processes for scorers that need them: math_verify, your own.")
    time_limit_seconds: PositiveFloat = Field(
        default=5.0, description="After this long a verdict's worker is killed and replaced."
    )
    memory_limit_bytes: PositiveInt = Field(
        default=2**30, description="Address space of a worker, the libraries it imports included."
    )
    overlong_penalty_factor: NonNegativeFloat = Field(
        default=1.0, description="Largest soft overlong punishment; 0 is off."
    )
    overlong_buffer_length: NonNegativeInt = Field(
        default=0, description="Tokens before the limit over which the punishment grows from 0; 0 is off."
    )
    overlong_filter: bool = Field(default=False, description="Truncated rollouts carry no loss.")

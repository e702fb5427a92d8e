"""What every section of the recipe is made of: strict and frozen, with ranges on the fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of the recipe in which unknown keys and loose types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

"""Dataset cards: one YAML file in data/ per dataset. Adding a dataset is adding a card."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dapo_cli.errors import UsageError
from dapo_cli.resources import resource_folder


class FileColumns(BaseModel):
    """Which columns of the user's file hold the problem and its ground truth."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    problem_column: str = "problem"
    answer_column: str = "answer"


class DatasetCard(BaseModel):
    """What a dataset is: generated here (`generator` and its parameters) or read from a file (`file`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    description: str
    license: str
    data_source: str
    """Written to every row; verl routes to a scorer by it."""
    heldout_problems: Annotated[int, Field(ge=0)]
    file: FileColumns | None = None
    generator: Literal["sums"] | None = None
    digits: Annotated[int, Field(ge=1, le=9)] | None = None
    """sums: digits of every term."""
    terms: Annotated[int, Field(ge=2, le=9)] | None = None
    """sums: numbers added up."""
    problems: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    """sums: how many different sums, or all of them."""

    @model_validator(mode="after")
    def _one_origin(self) -> DatasetCard:
        if (self.generator is None) == (self.file is None):
            raise ValueError("a card has either `generator` or `file`")
        parameters = (self.digits, self.terms, self.problems)
        if self.generator is None and any(value is not None for value in parameters):
            raise ValueError("digits, terms and problems belong to `generator: sums`")
        if self.generator is not None and any(value is None for value in parameters):
            raise ValueError("`generator: sums` needs digits, terms and problems")
        return self


@cache
def load_card(name: str) -> DatasetCard | None:
    """The card data/<name>.yaml, or None where there is no such card.

    Raises:
        UsageError: the card is not valid YAML, breaks the schema, or is named differently from its file.
    """
    path = resource_folder("data") / f"{name}.yaml"
    if not path.is_file():
        return None
    try:
        card = DatasetCard.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "card"
        raise UsageError(f"{path}: {where}: {first['msg']}") from error
    if card.name != name:
        raise UsageError(f"{path}: name: got {card.name!r}, want {name!r}, the name of the file")
    return card


def card_names() -> list[str]:
    """Names of all cards, sorted."""
    return sorted(path.stem for path in resource_folder("data").glob("*.yaml"))

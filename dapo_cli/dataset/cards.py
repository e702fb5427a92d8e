"""Dataset cards: one YAML file in data/ per dataset. Adding a dataset is adding a card."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dapo_cli.errors import UsageError
from dapo_cli.resources import resource_folder


class CardPart(BaseModel):
    """A frozen part of a card in which unknown keys are errors; lists of YAML become tuples."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileColumns(CardPart):
    """Which columns of the file hold the problem and its ground truth; dots reach into a column."""

    problem_column: str = "problem"
    answer_column: str = "answer"
    answer_after: str | None = None
    """The ground truth is what follows the last of these in the answer column; null: all of it."""


class HubFiles(CardPart):
    """Files of a dataset repository on the hub."""

    id: str
    revision: str | None
    """null: the newest, whose commit is recorded."""
    files: tuple[str, ...]
    """Patterns."""


class DatasetCard(CardPart):
    """What a dataset is: generated here (`generator` and its parameters) or read from files (`file`, `hub`)."""

    name: str
    description: str
    license: str
    data_source: str
    """Written to every row; verl routes to a scorer by it."""
    heldout_problems: Annotated[int, Field(ge=0)]
    file: FileColumns | None = None
    hub: HubFiles | None = None
    """Where the files are when the recipe names none."""
    expected_rows: tuple[int, ...] = ()
    """Numbers of rows that are as published; any other is shown."""
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
        if self.hub is not None and self.file is None:
            raise ValueError("`hub` needs `file`, which names the columns")
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

"""What decides the contents of the prepared files: the recipe and the dataset card joined, and the source."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.dataset.cards import DatasetCard, FileColumns, card_names, load_card
from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.dataset.rows import Row, read_rows, sum_rows
from dapo_cli.dataset.split import Split, split_rows
from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Recipe

FORMAT_VERSION = 1
"""Raised when the same settings and source would give other files."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the source that decides what the prepared files hold."""

    card: DatasetCard
    columns: FileColumns | None
    heldout_problems: int
    prompt_template: str

    @property
    def hash(self) -> str:
        """First 12 hex digits of a SHA-256 over the settings and the format version."""
        columns = self.columns and self.columns.model_dump()
        parts = [FORMAT_VERSION, self.card.model_dump(), columns, self.heldout_problems, self.prompt_template]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def resolve(recipe: Recipe) -> Settings:
    """The recipe's dataset and prompt sections joined with the card; what the recipe names wins.

    Raises:
        UsageError: neither a card nor a usable dataset of one's own, or a bad prompt template.
    """
    section = recipe.dataset
    card = load_card(section.name)
    if card is None:
        card = _own_card(recipe)
    columns = card.file and FileColumns(
        problem_column=section.problem_column or card.file.problem_column,
        answer_column=section.answer_column or card.file.answer_column,
    )
    heldout = card.heldout_problems if section.heldout_problems is None else section.heldout_problems
    return Settings(card, columns, heldout, template_text(recipe.prompt.template))


def _own_card(recipe: Recipe) -> DatasetCard:
    section = recipe.dataset
    if section.source is None:
        raise UsageError(
            f"dataset.name: no card named {section.name!r}; cards: {', '.join(card_names())}",
            hint="for data of your own, set dataset.source and dataset.heldout_problems too",
        )
    if section.heldout_problems is None:
        raise UsageError(
            f"dataset.heldout_problems: has to be set, because {section.name!r} has no card to take it from"
        )
    return DatasetCard(
        name=section.name,
        description="A file without a dataset card.",
        license="not stated",
        data_source="math_dapo",
        heldout_problems=section.heldout_problems,
        file=FileColumns(),
    )


def prepared_folder(recipe: Recipe) -> Path:
    """`dataset.prepared`, else runs/_data/<name>-<hash of all that decides the data but the source>.

    Raises:
        UsageError: see `resolve`.
    """
    if recipe.dataset.prepared is not None:
        return Path(recipe.dataset.prepared)
    return Path("runs") / "_data" / f"{recipe.dataset.name}-{resolve(recipe).hash}"


def prepare_command(recipe: Recipe, recipe_reference: str) -> str:
    """The command that prepares the recipe's data; `recipe_reference` is how the user named the recipe."""
    needs_source = resolve(recipe).columns is not None and recipe.dataset.source is None
    return f"dapo prepare-data {recipe_reference}" + (" --source FILE" if needs_source else "")


def source_path(recipe: Recipe, settings: Settings, source: Path | None) -> Path | None:
    """The file to read: `source`, else dataset.source; None for a generated dataset.

    Raises:
        UsageError: a file is needed and not given or not there, or given and not needed.
    """
    path = source or (Path(recipe.dataset.source) if recipe.dataset.source else None)
    name = settings.card.name
    if settings.columns is None:
        if path is not None:
            raise UsageError(f"source: {name} is generated and reads no file, got {path}; leave the source out")
        return None
    if path is None:
        raise UsageError(
            f"source: {name} ships no problems; it reads a jsonl, json, csv or parquet file of yours",
            hint=f"give --source FILE or set dataset.source. {settings.card.description}",
        )
    if not path.is_file():
        raise UsageError(f"{path}: source: no such file; give another with --source FILE or dataset.source")
    return path


def source_rows(settings: Settings, path: Path | None) -> list[Row]:
    """Every row of the file at `path`, or of the generator.

    Raises:
        UsageError: see `read_rows` and `sum_rows`; or a file is needed and not given.
    """
    if settings.columns is not None and path is not None:
        return read_rows(path, settings.columns.problem_column, settings.columns.answer_column)
    card = settings.card
    if card.digits is None or card.terms is None or card.problems is None:
        raise UsageError(f"{card.name}: a dataset that is read from a file needs its source")
    return sum_rows(card.digits, card.terms, card.problems)


def generated_split(card: DatasetCard, heldout_problems: int) -> Split:
    """The problems of a generated dataset, split as `prepare` splits them, without writing anything.

    Raises:
        UsageError: the card reads a file, or nothing would be left to train on.
    """
    return split_rows(source_rows(Settings(card, None, heldout_problems, "{problem}"), None), heldout_problems)

"""What decides the contents of the prepared files, but for the sources: the recipe and the dataset cards joined."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.dataset.cards import DatasetCard, FileColumns, card_names, load_card
from dapo_cli.dataset.prompt_template import template_text
from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Dataset, DatasetPart, Recipe

FORMAT_VERSION = 2
"""Raised when the same settings and source would give other files."""


@dataclass(frozen=True, slots=True)
class PartSettings:
    """One dataset: its card, and what the recipe says about it."""

    name: str
    card: DatasetCard
    columns: FileColumns | None
    """None for generated data."""
    heldout_problems: int
    source: str | None
    revision: str | None
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the sources that decides what the prepared files hold."""

    name: str
    parts: tuple[PartSettings, ...]
    duplicates: str
    conflicts: str
    benchmarks: tuple[str, ...]
    """Whose problems are looked for."""
    overlapping_problems: str
    prompt_template: str
    length_filter: tuple[Any, ...] | None
    """What decides which prompts are too long; None where none is dropped."""

    @property
    def hash(self) -> str:
        """First 12 hex digits of a SHA-256 over the settings and the format version."""
        parts = [
            [part.name, part.card.model_dump(), part.columns and part.columns.model_dump(), part.heldout_problems]
            for part in self.parts
        ]
        rules = [self.duplicates, self.conflicts, self.overlapping_problems]
        # Which benchmarks are looked for decides the files only where something is dropped for it.
        benchmarks = self.benchmarks if self.overlapping_problems == "drop" else ()
        whole = [FORMAT_VERSION, parts, rules, benchmarks, self.prompt_template, self.length_filter]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]


def resolve(recipe: Recipe) -> Settings:
    """The recipe's dataset and prompt sections joined with the cards; what the recipe names wins.

    Raises:
        UsageError: neither a card nor a usable dataset of one's own, or a bad prompt template.
    """
    section = recipe.dataset
    named: tuple[Dataset | DatasetPart, ...] = section.parts or (section,)
    prompt = recipe.prompt
    drops = prompt.long_prompts == "drop"
    wanted = dict.fromkeys([*section.overlap_benchmarks, recipe.eval.benchmark])
    return Settings(
        name=section.name,
        parts=tuple(_resolve_part(part, _key_of(section, index)) for index, part in enumerate(named)),
        duplicates=section.duplicates,
        conflicts=section.conflicts,
        benchmarks=tuple(name for name in wanted if name != "heldout"),
        overlapping_problems=section.overlapping_problems,
        prompt_template=template_text(prompt.template),
        length_filter=(recipe.model.path, recipe.model.revision, prompt.model_dump(mode="json")) if drops else None,
    )


def _key_of(section: Dataset, index: int) -> str:
    return f"dataset.parts[{index}]" if section.parts else "dataset"


def _resolve_part(part: Dataset | DatasetPart, key: str) -> PartSettings:
    card = load_card(part.name) or _own_card(part, key)
    columns = card.file and FileColumns(
        problem_column=part.problem_column or card.file.problem_column,
        answer_column=part.answer_column or card.file.answer_column,
        # It belongs to the card's own column.
        answer_after=card.file.answer_after if part.answer_column in (None, card.file.answer_column) else None,
    )
    heldout = card.heldout_problems if part.heldout_problems is None else part.heldout_problems
    return PartSettings(part.name, card, columns, heldout, part.source, part.revision, part.files)


def _own_card(part: Dataset | DatasetPart, key: str) -> DatasetCard:
    if part.source is None:
        raise UsageError(
            f"{key}.name: no card named {part.name!r}; cards: {', '.join(card_names())}",
            hint=f"for data of your own, set {key}.source and {key}.heldout_problems too",
        )
    if part.heldout_problems is None:
        raise UsageError(f"{key}.heldout_problems: has to be set, because {part.name!r} has no card to take it from")
    return DatasetCard(
        name=part.name,
        description="Rows without a dataset card.",
        license="not stated",
        data_source="math_dapo",
        heldout_problems=part.heldout_problems,
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
    needs_source = any(
        part.columns is not None and part.source is None and part.card.hub is None for part in resolve(recipe).parts
    )
    return f"dapo prepare-data {recipe_reference}" + (" --source FILE" if needs_source else "")

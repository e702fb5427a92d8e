"""data_card.json beside the prepared files: where the data came from and what was done to it; and its readable form."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dapo_cli.dataset.cards import DatasetCard, FileColumns
from dapo_cli.dataset.rows import Row
from dapo_cli.dataset.split import Split

EXAMPLES_SHOWN = 10


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileHash(_Part):
    """A file by name, size and content."""

    name: str
    size_bytes: int
    sha256: str


class Counts(_Part):
    """Rows at each stage. rows_read = duplicates_dropped + conflicting_rows_dropped + train + heldout."""

    rows_read: int
    numbers_written_as_text: int
    duplicates_dropped: int
    conflicting_rows_dropped: int
    train: int
    heldout: int


class DataCard(_Part):
    """Everything that data_card.json holds."""

    settings_hash: str
    dataset: DatasetCard
    columns: FileColumns | None
    """Columns of the source; None for generated data."""
    prompt_template: str
    source: FileHash | None
    """None for generated data."""
    counts: Counts
    answers: dict[str, int]
    """Kept answers by form: integer, negative integer, decimal, text."""
    number_examples: tuple[str, ...]
    duplicate_examples: tuple[str, ...]
    conflict_examples: tuple[str, ...]
    files: tuple[FileHash, ...]


def file_hash(path: Path) -> FileHash:
    """Name, size and SHA-256 of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileHash(name=path.name, size_bytes=path.stat().st_size, sha256=digest)


def count_rows(rows: Iterable[Row], split: Split) -> Counts:
    """Counts at each stage of the preparation."""
    rows = list(rows)
    return Counts(
        rows_read=len(rows),
        numbers_written_as_text=sum(row.rewritten is not None for row in rows),
        duplicates_dropped=len(split.duplicates),
        conflicting_rows_dropped=sum(map(len, split.conflicts)),
        train=len(split.train),
        heldout=len(split.heldout),
    )


def answer_forms(answers: Iterable[str]) -> dict[str, int]:
    """How many answers are integers, negative integers, decimals, or something else.

    >>> answer_forms(["7", "-3", "2.5", "x+1", "12"])
    {'integer': 2, 'negative integer': 1, 'decimal': 1, 'text': 1}
    """
    forms = {"integer": r"\d+", "negative integer": r"-\d+", "decimal": r"-?\d*\.\d+", "text": r"(?s).*"}
    found = Counter(next(form for form, rule in forms.items() if re.fullmatch(rule, text.strip())) for text in answers)
    return {form: found[form] for form in forms}


def examples(split: Split, rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """The first few rewritten numbers, duplicates and conflicts, one line each."""
    rewritten = [f"{row.where}: {row.rewritten} became {row.answer!r}" for row in rows if row.rewritten is not None]
    duplicates = [f"{row.where}: {_shortened(row.problem)}" for row in split.duplicates]
    conflicts = [
        f"{_shortened(twins[0].problem)}: " + ", ".join(f"{row.answer!r} ({row.where})" for row in twins)
        for twins in split.conflicts
    ]
    return {
        "number_examples": tuple(rewritten[:EXAMPLES_SHOWN]),
        "duplicate_examples": tuple(duplicates[:EXAMPLES_SHOWN]),
        "conflict_examples": tuple(conflicts),
    }


def _shortened(text: str, limit: int = 100) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[: limit - 3] + "..."


def as_markdown(card: DataCard) -> str:
    """The data card for readers: counts, what was dropped and why, hashes, answers, template."""
    counts = card.counts
    source = (
        f"{card.source.name}, {card.source.size_bytes} bytes, sha256 {card.source.sha256}"
        if card.source
        else "generated"
    )
    columns = card.columns
    named = f"\nColumns: problem `{columns.problem_column}`, answer `{columns.answer_column}`.\n" if columns else ""
    lists = [
        ("Duplicates dropped (same problem and answer as an earlier row)", card.duplicate_examples),
        ("Problems dropped because their rows disagree about the answer", card.conflict_examples),
        ("Numbers written as text", card.number_examples),
    ]
    shown = [f"## {title}\n\n" + "".join(f"- {line}\n" for line in lines) for title, lines in lists if lines]
    return "\n".join(
        [
            f"# {card.dataset.name}\n\n{card.dataset.description}\n",
            f"License: {card.dataset.license}. Source: {source}.\n{named}",
            "| stage | rows |\n|---|---|\n"
            f"| read | {counts.rows_read} |\n"
            f"| duplicates dropped | {counts.duplicates_dropped} |\n"
            f"| rows with conflicting answers dropped | {counts.conflicting_rows_dropped} |\n"
            f"| held out (smallest content hashes) | {counts.heldout} |\n"
            f"| train | {counts.train} |\n",
            "Answers: " + ", ".join(f"{count} {form}" for form, count in card.answers.items()) + ".\n",
            *shown,
            f"## Prompt template\n\n```text\n{card.prompt_template}\n```\n",
            "## Files\n\n"
            + "".join(f"- {file.name}: {file.size_bytes} bytes, sha256 {file.sha256}\n" for file in card.files),
        ]
    )

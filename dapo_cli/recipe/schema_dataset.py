"""The section `dataset` of the recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dapo_cli.recipe.section import NonNegativeInt, PositiveFloat, Section


class DatasetPart(Section):
    """One of several datasets that are trained on together."""

    name: str = Field(description="A card in data/, or a name of your own together with `source`.")
    source: str | None = Field(default=None, description="As dataset.source.")
    revision: str | None = Field(default=None, description="As dataset.revision.")
    files: tuple[str, ...] = Field(default=(), description="As dataset.files.")
    problem_column: str | None = Field(default=None, description="As dataset.problem_column.")
    answer_column: str | None = Field(default=None, description="As dataset.answer_column.")
    heldout_problems: NonNegativeInt | None = Field(default=None, description="As dataset.heldout_problems.")
    weight: PositiveFloat | None = Field(
        default=None,
        description="Share of the problems drawn, relative to the other parts; null for all: by number of problems.",
    )
    scorer: str | tuple[str, ...] | None = Field(
        default=None, description="Judges this part's responses; null: reward.scorer."
    )


class Dataset(Section):
    """Where the training and held-out problems come from."""

    name: str = Field(description="A card in data/, or a name of your own together with `source` or `parts`.")
    source: str | None = Field(
        default=None,
        description="Local jsonl, json, csv or parquet file, a folder of them, or a hub id (ORG/NAME); null: --source "
        "of prepare-data, else where the card says.",
    )
    revision: str | None = Field(
        default=None,
        description="Hub revision of the source; null: the card's, and for a source of your own the newest.",
    )
    files: tuple[str, ...] = Field(
        default=(),
        description="Which files of a folder or hub id are read, as patterns such as en/*.parquet; empty: the card's, "
        "else all.",
    )
    problem_column: str | None = Field(
        default=None,
        description="Column of the source that holds the problem, dots for a field inside a column; null takes the "
        "card's, else problem.",
    )
    answer_column: str | None = Field(
        default=None,
        description="Column of the source that holds the ground truth; null takes the card's, else answer.",
    )
    heldout_problems: NonNegativeInt | None = Field(
        default=None,
        description="Problems set apart for evaluation, chosen by content hash; null takes the card's number.",
    )
    parts: tuple[DatasetPart, ...] = Field(
        default=(),
        description="Several datasets in place of one; source, columns and held-out problems are then theirs.",
    )
    duplicates: Literal["drop", "keep"] = Field(
        default="drop", description="Rows that repeat an earlier problem; keep: as in the public run, in row order."
    )
    conflicts: Literal["drop", "majority", "keep"] = Field(
        default="drop",
        description="Problems whose rows disagree about the answer: drop them, take the answer of most rows (none in a "
        "tie), or keep every answer.",
    )
    overlap_benchmarks: tuple[str, ...] = Field(
        default=(), description="Cards in evals/ whose problems are looked for in the data; eval.benchmark always is."
    )
    overlapping_problems: Literal["keep", "drop"] = Field(
        default="keep",
        description="What happens to problems that one of these benchmarks asks; either way they are listed.",
    )
    prepared: str | None = Field(
        default=None, description="Folder of the prepared data; null: runs/_data/<name>-<hash of what decides it>."
    )
    shuffle_seed: NonNegativeInt = Field(default=1, description="Seed of the order in which problems are drawn.")
    allow_benchmark_overlap: bool = Field(
        default=False,
        description="Train although problems of the benchmark are in the training data; reports say CONTAMINATED.",
    )

"""Prepared data as problems, verified on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.dataset.data_card import DataCard
from dapo_cli.dataset.prepare import DATA_CARD, check_unchanged, read_data_card
from dapo_cli.dataset.settings import prepare_command, prepared_folder
from dapo_cli.dataset.sources import file_hash
from dapo_cli.dataset.split import assert_disjoint
from dapo_cli.dataset.write import HELDOUT, TRAIN
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.scorers import scorer_names
from dapo_cli.types import Problem


@dataclass(frozen=True, slots=True)
class Prepared:
    """The problems of a prepared folder; train and held-out share none."""

    folder: Path
    card: DataCard
    train: tuple[Problem, ...]
    heldout: tuple[Problem, ...]


def load_prepared(
    folder: Path,
    command: str = "dapo prepare-data RECIPE",
    scorers: Mapping[str, tuple[str, ...]] | None = None,
) -> Prepared:
    """Read `folder` and verify it: file hashes as in its data card, train and held-out disjoint by content hash.

    `command` is what an error about unprepared data tells the user to run; `scorers` are those of datasets that have
    their own.

    Raises:
        UsageError: the data is not prepared.
        VerificationError: a file is missing or changed, or the splits overlap.
    """
    if not (folder / DATA_CARD).is_file():
        raise UsageError(f"{folder}: the data is not prepared", hint=f"run: {command}")
    card = read_data_card(folder)
    for expected in card.files:
        path = folder / expected.name
        if not path.is_file() or file_hash(path) != expected:
            state = "changed since it was written" if path.is_file() else "missing"
            raise VerificationError(f"{path}: {state} (see {DATA_CARD})", hint=f"remove {folder} and run: {command}")
    train, heldout = (_problems(folder / name, scorers or {}) for name in (TRAIN, HELDOUT))
    assert_disjoint(
        *([problem.text for problem in {id(each): each for each in part}.values()] for part in (train, heldout))
    )
    return Prepared(folder, card, train, heldout)


def open_prepared(recipe: Recipe, recipe_reference: str) -> Prepared:
    """`load_prepared` of the recipe's default folder; `recipe_reference` is how the user named the recipe.

    Raises:
        UsageError: the data is not prepared, or was prepared from another file than the dataset.source of the recipe.
        VerificationError: see `load_prepared`.
    """
    folder = prepared_folder(recipe)
    prepared = load_prepared(folder, prepare_command(recipe, recipe_reference), scorers_of_parts(recipe))
    check_unchanged(recipe, folder, prepared.card)
    return prepared


def scorers_of_parts(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """The scorers of those datasets that have their own, by the dataset's name."""
    return {part.name: scorer_names(part.scorer) for part in recipe.dataset.parts if part.scorer is not None}


def _problems(path: Path, scorers: Mapping[str, tuple[str, ...]]) -> tuple[Problem, ...]:
    """Every row as a problem; rows that repeat one share its object, so that memory does not grow with them."""
    import pyarrow.parquet

    known: dict[tuple[str, str, str], Problem] = {}
    problems = []
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=8192):
            for row in batch.to_pylist():
                about, truth = row["extra_info"], row["reward_model"]["ground_truth"]
                key = (about["problem"], truth, about["dataset"])
                if key not in known:
                    known[key] = Problem(
                        problem_id=about["problem_id"],
                        text=about["problem"],
                        messages=tuple(row["prompt"]),
                        ground_truth=truth,
                        data_source=row["data_source"],
                        dataset=about["dataset"],
                        scorer=scorers.get(about["dataset"]),
                    )
                problems.append(known[key])
    return tuple(problems)

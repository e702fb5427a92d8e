"""Prepared data as problems, verified on the way in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dapo_cli.dataset.data_card import DataCard, file_hash
from dapo_cli.dataset.prepare import DATA_CARD, HELDOUT, TRAIN, check_source, read_data_card
from dapo_cli.dataset.settings import prepare_command, prepared_folder, resolve
from dapo_cli.dataset.split import assert_disjoint
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import Recipe
from dapo_cli.types import Problem


@dataclass(frozen=True, slots=True)
class Prepared:
    """The problems of a prepared folder; train and held-out share none."""

    folder: Path
    card: DataCard
    train: tuple[Problem, ...]
    heldout: tuple[Problem, ...]


def load_prepared(folder: Path, command: str = "dapo prepare-data RECIPE") -> Prepared:
    """Read `folder` and verify it: file hashes as in its data card, train and held-out disjoint by content hash.

    `command` is what an error about unprepared data tells the user to run.

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
    train, heldout = _problems(folder / TRAIN), _problems(folder / HELDOUT)
    assert_disjoint([problem.text for problem in train], [problem.text for problem in heldout])
    return Prepared(folder, card, train, heldout)


def open_prepared(recipe: Recipe, recipe_reference: str) -> Prepared:
    """`load_prepared` of the recipe's default folder; `recipe_reference` is how the user named the recipe.

    Raises:
        UsageError: the data is not prepared, or was prepared from another file than the dataset.source of the recipe.
        VerificationError: see `load_prepared`.
    """
    folder = prepared_folder(recipe)
    prepared = load_prepared(folder, prepare_command(recipe, recipe_reference))
    if prepared.card.settings_hash != resolve(recipe).hash:
        raise UsageError(
            f"dataset.prepared: {folder} was prepared with other settings (hash {prepared.card.settings_hash}, the "
            f"recipe's is {resolve(recipe).hash})",
            hint="dapo prepare-data RECIPE --out DIR with the dataset and prompt.template of this recipe",
        )
    source = recipe.dataset.source and Path(recipe.dataset.source)
    if source and source.is_file():
        check_source(folder, prepared.card, source)
    return prepared


def _problems(path: Path) -> tuple[Problem, ...]:
    import pyarrow.parquet

    return tuple(
        Problem(
            problem_id=row["extra_info"]["problem_id"],
            text=row["extra_info"]["problem"],
            messages=tuple(row["prompt"]),
            ground_truth=row["reward_model"]["ground_truth"],
            data_source=row["data_source"],
        )
        for row in pyarrow.parquet.read_table(path).to_pylist()
    )

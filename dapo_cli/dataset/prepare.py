"""From a dataset card and its source to train.parquet, heldout.parquet and a data card, checked and split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.dataset.data_card import DataCard, answer_forms, as_markdown, count_rows, examples, file_hash
from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.dataset.rows import Row
from dapo_cli.dataset.settings import Settings, prepared_folder, resolve, source_path, source_rows
from dapo_cli.dataset.split import Split, assert_disjoint, split_rows
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import Recipe

DATA_CARD = "data_card.json"
TRAIN, HELDOUT = "train.parquet", "heldout.parquet"


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Where the files are, their data card, and whether they were there before."""

    folder: Path
    card: DataCard
    already_prepared: bool


def prepare(recipe: Recipe, source: Path | None = None, out: Path | None = None) -> PreparedData:
    """Write the recipe's problems to `out` (default: `prepared_folder`), unless they are there already.

    `source` wins over dataset.source. Same source and settings give the same bytes.

    Raises:
        UsageError: no source or one too many, bad rows, nothing left to train on, or `out` holds something else.
        VerificationError: train and held-out problems overlap.
    """
    settings = resolve(recipe)
    path = source_path(recipe, settings, source)
    folder = out or prepared_folder(recipe)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return PreparedData(folder, _checked_card(folder, settings, path), already_prepared=True)
    rows = source_rows(settings, path)
    split = split_rows(rows, settings.heldout_problems)
    assert_disjoint([row.problem for _, row in split.train], [row.problem for _, row in split.heldout])
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        card = _write(temporary, settings, path, rows, split)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return PreparedData(folder, card, already_prepared=False)


def read_data_card(folder: Path) -> DataCard:
    """The data card of a prepared folder.

    Raises:
        UsageError: the folder holds no data card.
        VerificationError: the data card is damaged.
    """
    path = folder / DATA_CARD
    if not path.is_file():
        raise UsageError(f"{folder}: holds no {DATA_CARD}, so it is not prepared data; move it aside or give --out DIR")
    try:
        return DataCard.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VerificationError(f"{path}: not a data card of this version: {error}") from error


def _checked_card(folder: Path, settings: Settings, path: Path | None) -> DataCard:
    card = read_data_card(folder)
    if card.settings_hash != settings.hash:
        raise UsageError(
            f"{folder}: prepared with other settings (hash {card.settings_hash}, now {settings.hash}); "
            "remove the folder or give another --out DIR"
        )
    check_source(folder, card, path)
    return card


def check_source(folder: Path, card: DataCard, path: Path | None) -> None:
    """Refuse a source file other than the one `folder` was prepared from.

    Raises:
        UsageError: the hashes differ.
    """
    if path is None or card.source is None:
        return
    now = file_hash(path)
    if now.sha256 != card.source.sha256:
        raise UsageError(
            f"{folder}: prepared from {card.source.name} with sha256 {card.source.sha256}, but {path} has {now.sha256}",
            hint=f"remove {folder} and run dapo prepare-data again, or go back to the old file",
        )


def _write(folder: Path, settings: Settings, path: Path | None, rows: Sequence[Row], split: Split) -> DataCard:
    _write_parquet(folder / TRAIN, settings, split.train, "train")
    _write_parquet(folder / HELDOUT, settings, split.heldout, "heldout")
    card = DataCard(
        settings_hash=settings.hash,
        dataset=settings.card,
        columns=settings.columns,
        prompt_template=settings.prompt_template,
        source=file_hash(path) if path else None,
        counts=count_rows(rows, split),
        answers=answer_forms(row.answer for _, row in split.train + split.heldout),
        **examples(split, rows),
        files=(file_hash(folder / TRAIN), file_hash(folder / HELDOUT)),
    )
    (folder / DATA_CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "data_card.md").write_text(as_markdown(card), encoding="utf-8")
    return card


def _write_parquet(path: Path, settings: Settings, rows: Sequence[tuple[str, Row]], split_name: str) -> None:
    """Rows in the column layout that verl reads."""
    import pyarrow as pa
    import pyarrow.parquet

    text = pa.string()
    schema = pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"ground_truth": text, "style": text}),
            "extra_info": pa.struct({"index": pa.int64(), "problem": text, "problem_id": text, "split": text}),
        }
    )
    records = [
        {
            "data_source": settings.card.data_source,
            "prompt": [{"role": "user", "content": apply_template(settings.prompt_template, row.problem)}],
            "ability": "MATH",
            "reward_model": {"ground_truth": row.answer, "style": "rule"},
            "extra_info": {"index": index, "problem": row.problem, "problem_id": key, "split": split_name},
        }
        for index, (key, row) in enumerate(rows)
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(records, schema=schema), path)

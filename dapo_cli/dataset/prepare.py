"""From datasets and their sources to train.parquet, heldout.parquet and a data card, checked and split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dapo_cli.dataset.card_text import as_markdown
from dapo_cli.dataset.data_card import (
    DataCard,
    Lengths,
    Overlap,
    count_rows,
    findings,
    kept_answers,
    length_histogram,
    part_cards,
    unexpected,
)
from dapo_cli.dataset.selection import Selection, select
from dapo_cli.dataset.settings import Settings, prepared_folder, resolve
from dapo_cli.dataset.sources import FileHash, Source, file_hash, open_source, tables_of
from dapo_cli.dataset.survey import Survey, Surveyor
from dapo_cli.dataset.write import HELDOUT, TRAIN, write_rows
from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.recipe.schema import Recipe

DATA_CARD = "data_card.json"


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Where the files are, their data card, and whether they were there before."""

    folder: Path
    card: DataCard
    already_prepared: bool


@dataclass(frozen=True, slots=True)
class BenchmarkWords:
    """The problems of a benchmark, by `survey.words_hash`; None with the reason where they could not be had."""

    words: frozenset[bytes] | None
    reason: str
    """Where they came from, or why they could not be had."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a preparation needs besides the data: a tokenizer to measure prompts with, and benchmarks."""

    measure: Callable[[str], int] | None = None
    """Problem text -> tokens of its rendered prompt; None: cannot be measured."""
    tokenizer: str = "no tokenizer was asked for"
    """Whose tokenizer, or why there is none."""
    benchmarks: Mapping[str, BenchmarkWords] = field(default_factory=dict)


def prepare(
    recipe: Recipe,
    source: str | None = None,
    out: Path | None = None,
    look_around: Callable[[], Surroundings] = Surroundings,
) -> PreparedData:
    """Write the recipe's problems to `out` (default: `prepared_folder`), unless they are there already.

    `source` wins over dataset.source. Same sources and settings give the same bytes. `look_around` is called only if
    something is to be prepared.

    Raises:
        UsageError: no source or one too many, bad rows, nothing left to train on, or `out` holds something else.
        VerificationError: the folder was prepared before and is damaged.
    """
    settings = resolve(recipe)
    if source is not None and len(settings.parts) > 1:
        raise UsageError("--source: the recipe has several datasets", hint="set the source of each in dataset.parts")
    folder = out or prepared_folder(recipe)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        card = _checked_card(folder, settings)
        check_sources(folder, card, _local_sources(settings, source))
        return PreparedData(folder, card, already_prepared=True)
    sources = [open_source(part, source) for part in settings.parts]
    surroundings = look_around()
    tables = tables_of(sources)
    survey = Surveyor(settings, surroundings.measure).read(tables)
    limit = recipe.prompt.max_prompt_tokens if settings.length_filter is not None else None
    words = {name: found.words for name, found in surroundings.benchmarks.items() if found.words is not None}
    selection = select(survey, settings, words, [table.part for table in tables], limit)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write_rows(temporary, settings, tables, survey, selection)
        card = _describe(recipe, settings, sources, survey, selection)
        card = card.model_copy(
            update={
                "lengths": _lengths(recipe, surroundings, survey),
                "overlaps": _overlaps(surroundings, survey, selection),
                "files": (file_hash(temporary / TRAIN), file_hash(temporary / HELDOUT)),
            }
        )
        (temporary / DATA_CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (temporary / "data_card.md").write_text(as_markdown(card), encoding="utf-8")
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return PreparedData(folder, card, already_prepared=False)


def _describe(
    recipe: Recipe, settings: Settings, sources: Sequence[Source], survey: Survey, selection: Selection
) -> DataCard:
    parts = part_cards(settings, sources, survey, selection)
    answers, not_integers = kept_answers(survey, selection)
    languages: dict[str, int] = {}
    for problem in survey.problems:
        languages[problem.language] = languages.get(problem.language, 0) + 1
    return DataCard(
        name=settings.name,
        settings_hash=settings.hash,
        duplicates=settings.duplicates,
        conflicts=settings.conflicts,
        prompt_template=settings.prompt_template,
        counts=count_rows(survey, selection),
        distinct_problems=len(survey.problems),
        parts=parts,
        answers=answers,
        not_integers=not_integers,
        languages=languages,
        lengths=Lengths(tokenizer="", measured=False, limit=recipe.prompt.max_prompt_tokens),
        overlaps=(),
        findings=findings(survey, selection),
        notes=(*(note for source in sources for note in source.notes), *unexpected(parts)),
        files=(),
    )


def _lengths(recipe: Recipe, surroundings: Surroundings, survey: Survey) -> Lengths:
    limit = recipe.prompt.max_prompt_tokens
    tokens = [problem.prompt_tokens for problem in survey.problems if problem.prompt_tokens is not None]
    return Lengths(
        tokenizer=surroundings.tokenizer,
        measured=surroundings.measure is not None,
        limit=limit,
        longer=sum(count > limit for count in tokens),
        longest=max(tokens, default=0),
        histogram=length_histogram(tokens),
    )


def _overlaps(surroundings: Surroundings, survey: Survey, selection: Selection) -> tuple[Overlap, ...]:
    return tuple(
        Overlap(
            benchmark=name,
            checked=found.words is not None,
            reason=found.reason,
            asked=len({survey.problems[p].words for p in selection.overlaps.get(name, ())}),
            problem_ids=tuple(survey.problems[p].id for p in selection.overlaps.get(name, ())),
            examples=tuple(survey.problems[p].shown for p in selection.overlaps.get(name, ())[:10]),
        )
        for name, found in surroundings.benchmarks.items()
    )


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


def _checked_card(folder: Path, settings: Settings) -> DataCard:
    card = read_data_card(folder)
    if card.settings_hash != settings.hash:
        raise UsageError(
            f"{folder}: prepared with other settings (hash {card.settings_hash}, now {settings.hash}); "
            "remove the folder or give another --out DIR"
        )
    return card


def _local_sources(settings: Settings, source: str | None) -> list[Source | None]:
    """The sources that are local and there; a hub source is named by its pinned commit and needs no second look."""
    return [
        open_source(part, source) if (named := source or part.source) and Path(named).exists() else None
        for part in settings.parts
    ]


def check_sources(folder: Path, card: DataCard, sources: Sequence[Source | None]) -> None:
    """Refuse source files other than those that `folder` was prepared from.

    Raises:
        UsageError: the hashes differ.
    """
    for part, source in zip(card.parts, sources, strict=True):
        now: tuple[FileHash, ...] = source.hashes() if source is not None else part.files
        if [file.sha256 for file in now] != [file.sha256 for file in part.files]:
            before = ", ".join(f"{file.name} with sha256 {file.sha256}" for file in part.files) or "no file"
            found = ", ".join(f"{file.name} with {file.sha256}" for file in now)
            raise UsageError(
                f"{folder}: prepared from {before}, but now there is {found}",
                hint=f"remove {folder} and run dapo prepare-data again, or go back to the old file",
            )


def check_unchanged(recipe: Recipe, folder: Path, card: DataCard) -> None:
    """Refuse a prepared folder that other settings or other local files than the recipe's were prepared with.

    Raises:
        UsageError: settings or hashes differ.
    """
    settings = resolve(recipe)
    if card.settings_hash != settings.hash:
        raise UsageError(
            f"dataset.prepared: {folder} was prepared with other settings (hash {card.settings_hash}, the "
            f"recipe's is {settings.hash})",
            hint="dapo prepare-data RECIPE --out DIR with the dataset and prompt.template of this recipe",
        )
    check_sources(folder, card, _local_sources(settings, None))

"""data_card.json beside the prepared files: where the data came from and what was done to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from dapo_cli.dataset.cards import DatasetCard, FileColumns
from dapo_cli.dataset.near_duplicates import SIMILAR, similar_pairs
from dapo_cli.dataset.selection import CONFLICT, DUPLICATE, KEPT, OVERLAP, TOO_LONG, Selection
from dapo_cli.dataset.settings import Settings
from dapo_cli.dataset.sources import FileHash, Source
from dapo_cli.dataset.survey import ODDITIES, Survey

EXAMPLES_KEPT = 10
LISTED = 1000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(_Part):
    """Rows at each stage. rows_read = train + heldout + all that were dropped."""

    rows_read: int
    carried_a_template: int
    numbers_written_as_text: int
    conflicting_rows_dropped: int
    overlapping_rows_dropped: int
    too_long_rows_dropped: int
    duplicates_dropped: int
    duplicates_kept: int
    train: int
    heldout: int


class PartCard(_Part):
    """One dataset among those that were prepared together."""

    dataset: DatasetCard
    columns: FileColumns | None
    """Columns of the source; None for generated data."""
    source: str
    """generated, local, or the hub id with its commit."""
    files: tuple[FileHash, ...]
    counts: Counts


class Finding(_Part):
    """Something a reader of the data should know, with examples."""

    what: str
    count: int
    examples: tuple[str, ...]


class Overlap(_Part):
    """Which problems a benchmark asks too, compared on letters and digits."""

    benchmark: str
    checked: bool
    reason: str
    """Where the benchmark came from, or why it could not be compared."""
    asked: int = 0
    """How many of the benchmark's problems are in the data."""
    problem_ids: tuple[str, ...] = ()
    """The problems of the data that are among them."""
    examples: tuple[str, ...] = ()


class Lengths(_Part):
    """Rendered prompts in tokens, each distinct problem once."""

    tokenizer: str
    """Whose; or why lengths were not measured."""
    measured: bool
    limit: int
    """prompt.max_prompt_tokens"""
    longer: int = 0
    """Problems whose prompt is longer than that."""
    longest: int = 0
    histogram: dict[str, int] = {}
    """Tokens -> problems, in powers of two."""


class DataCard(_Part):
    """Everything that data_card.json holds."""

    name: str
    settings_hash: str
    duplicates: str
    conflicts: str
    prompt_template: str
    counts: Counts
    distinct_problems: int
    """Before anything was dropped."""
    parts: tuple[PartCard, ...]
    answers: dict[str, int]
    """Answers of distinct kept rows by form."""
    not_integers: tuple[str, ...]
    """Ground truths that are not integers, as they are; the first thousand."""
    languages: dict[str, int]
    """Distinct problems by script."""
    lengths: Lengths
    overlaps: tuple[Overlap, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What was not as the dataset cards expect."""
    files: tuple[FileHash, ...]


def count_rows(survey: Survey, selection: Selection, part: int | None = None) -> Counts:
    """Counts at each stage, of one part or of all."""
    mine = np.ones(len(selection.fate), dtype=bool) if part is None else selection.part_of_row == part
    fates = np.bincount(selection.fate[mine], minlength=DUPLICATE + 1)
    kinds = survey.row_kinds()[mine]
    templated, rewritten = (
        np.array([bool(getattr(row, name)) for row in survey.distinct])[kinds] for name in ("templated", "rewritten")
    )
    kept = (selection.fate == KEPT) & mine
    return Counts(
        rows_read=int(mine.sum()),
        carried_a_template=int(templated.sum()),
        numbers_written_as_text=int(rewritten.sum()),
        conflicting_rows_dropped=int(fates[CONFLICT]),
        overlapping_rows_dropped=int(fates[OVERLAP]),
        too_long_rows_dropped=int(fates[TOO_LONG]),
        duplicates_dropped=int(fates[DUPLICATE]),
        duplicates_kept=int((selection.duplicate & kept).sum()),
        train=int((kept & ~selection.row_heldout).sum()),
        heldout=int((kept & selection.row_heldout).sum()),
    )


FORMS = {
    "integer 0 to 999": r"\d{1,3}",
    "larger integer": r"\d{4,18}",
    "integer of 19 digits or more": r"\d{19,}",
    "negative integer": r"-\d+",
    "decimal": r"-?\d*\.\d+",
    "text": r"(?s).*",
}
NOT_INTEGERS = ("decimal", "text")


def answer_form(answer: str) -> str:
    """What a ground truth looks like.

    >>> [answer_form(text) for text in ("7", "-3", "2.5", "x+1", "1234")]
    ['integer 0 to 999', 'negative integer', 'decimal', 'text', 'larger integer']
    """
    return next(form for form, rule in FORMS.items() if re.fullmatch(rule, answer.strip()))


def part_cards(
    settings: Settings, sources: Sequence[Source], survey: Survey, selection: Selection
) -> tuple[PartCard, ...]:
    """The card of every part."""
    return tuple(
        PartCard(
            dataset=part.card,
            columns=part.columns,
            source=source.description,
            files=source.hashes(),
            counts=count_rows(survey, selection, index),
        )
        for index, (part, source) in enumerate(zip(settings.parts, sources, strict=True))
    )


def unexpected(parts: Iterable[PartCard]) -> tuple[str, ...]:
    """What a dataset card says otherwise."""
    return tuple(
        f"{part.dataset.name}: {part.counts.rows_read} rows; as published it has "
        + " or ".join(str(number) for number in part.dataset.expected_rows)
        for part in parts
        if part.dataset.expected_rows and part.counts.rows_read not in part.dataset.expected_rows
    )


def kept_answers(survey: Survey, selection: Selection) -> tuple[dict[str, int], tuple[str, ...]]:
    """How many answers of distinct kept rows have which form, and the first that are not integers."""
    kept = np.unique(survey.row_kinds()[selection.fate == KEPT])
    rows = [survey.distinct[kind] for kind in kept]
    forms = [answer_form(row.answer) for row in rows]
    found = Counter(forms)
    odd = [f"{row.where}: {row.answer!r}" for row, form in zip(rows, forms, strict=True) if form in NOT_INTEGERS]
    return {form: found[form] for form in FORMS}, tuple(odd[:LISTED])


def findings(survey: Survey, selection: Selection) -> tuple[Finding, ...]:
    """Duplicates, conflicts, near-duplicates and oddities, with examples; those that were not found are left out."""
    problems, distinct = survey.problems, survey.distinct
    kinds = survey.row_kinds()
    duplicates = [
        f"{where}: {problems[distinct[kinds[row]].problem].shown}"
        for row, where in survey.repeats.items()
        if selection.duplicate[row]
    ]
    answers: dict[int, list[str]] = {problem: [] for problem in selection.conflicts}
    for row in distinct:
        if row.problem in answers:
            answers[row.problem].append(f"{row.answer!r} ({row.where})")
    conflicts = [f"{problems[problem].shown}: {', '.join(found)}" for problem, found in answers.items()]
    rewritten = [f"{row.where}: {row.rewritten} became {row.answer!r}" for row in distinct if row.rewritten]
    signed = [(p, problem.signature) for p, problem in enumerate(problems) if problem.signature is not None]
    pairs = similar_pairs([own for _, own in signed])
    alike = [
        (pair.similarity, signed[pair.later][0], signed[pair.earlier][0])
        for pair in sorted(pairs, key=lambda pair: -pair.similarity)
    ]
    similar = [f"{score:.2f}: {problems[p].shown} | {problems[q].shown}" for score, p, q in alike]
    truths = {row.problem: row for row in reversed(distinct)}
    disputed = [
        f"{score:.2f}: {truths[p].answer!r} ({truths[p].where}), {truths[q].answer!r} ({truths[q].where}): "
        f"{problems[p].shown}"
        for score, p, q in alike
        if truths[p].answer_key != truths[q].answer_key
    ]
    found = [
        Finding(
            what="rows that repeat an earlier problem and answer",
            count=int(selection.duplicate.sum()),
            examples=tuple(duplicates[:EXAMPLES_KEPT]),
        ),
        _finding("problems whose rows disagree about the answer", conflicts, LISTED),
        _finding("distinct rows whose number was written as text", rewritten),
        _finding(
            f"problems that resemble an earlier one (estimated similarity of {SIMILAR} or more; none is dropped)",
            similar,
        ),
        _finding("of these have another answer than the problem they resemble", disputed, LISTED),
        *(
            _finding(f"problems with {name}", [problem.shown for problem in problems if name in problem.oddities])
            for name in ODDITIES
        ),
    ]
    return tuple(finding for finding in found if finding.count)


def _finding(what: str, examples: Sequence[str], listed: int = EXAMPLES_KEPT) -> Finding:
    return Finding(what=what, count=len(examples), examples=tuple(examples[:listed]))


def length_histogram(tokens: Iterable[int]) -> dict[str, int]:
    """How many prompts have up to 32, 64, 128, ... tokens.

    >>> length_histogram([5, 40, 33, 200])
    {'1-32': 1, '33-64': 2, '129-256': 1}
    """
    bins = Counter(max(32, 1 << (count - 1).bit_length()) if count > 1 else 32 for count in tokens)
    return {f"{1 if top == 32 else top // 2 + 1}-{top}": bins[top] for top in sorted(bins)}

"""Which rows are kept, and why the others are not: conflicts, overlap, length, duplicates, in this order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapo_cli.dataset.settings import Settings
from dapo_cli.dataset.split import heldout_ids
from dapo_cli.dataset.survey import Survey

KEPT, CONFLICT, OVERLAP, TOO_LONG, DUPLICATE = range(5)
"""Why a row is not kept; KEPT: it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What became of every row and problem of a survey."""

    fate: npt.NDArray[np.uint8]  # [rows], KEPT or a reason
    row_heldout: npt.NDArray[np.bool_]  # [rows], whether the row's problem is held out
    duplicate: npt.NDArray[np.bool_]  # [rows], repeats an earlier row of the same problem and answer, kept or not
    part_of_row: npt.NDArray[np.intp]  # [rows]
    conflicts: tuple[int, ...]
    """Problems whose rows disagree about the answer."""
    overlaps: Mapping[str, tuple[int, ...]]
    """Benchmark -> the problems that it asks too."""
    too_long: tuple[int, ...]


def select(
    survey: Survey,
    settings: Settings,
    benchmarks: Mapping[str, frozenset[bytes]],
    parts: Sequence[int],
    max_prompt_tokens: int | None,
) -> Selection:
    """Decide about every row.

    `benchmarks` holds the `words_hash` of every problem of a benchmark, `parts` the part of every table, and
    `max_prompt_tokens` the longest prompt that is kept (None: any).

    Raises:
        UsageError: more problems are to be held out than are left.
    """
    kinds = survey.row_kinds()
    counts = np.bincount(kinds, minlength=len(survey.distinct))
    by_problem: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(survey.distinct):
        by_problem[row.problem].append(index)
    conflicts = [p for p, rows in by_problem.items() if len({survey.distinct[k].answer_key for k in rows}) > 1]
    overlaps = {
        name: tuple(p for p, problem in enumerate(survey.problems) if problem.words in words)
        for name, words in benchmarks.items()
    }
    too_long = [
        p
        for p, problem in enumerate(survey.problems)
        if max_prompt_tokens is not None and (problem.prompt_tokens or 0) > max_prompt_tokens
    ]
    fate_of_kind = np.zeros(len(survey.distinct), dtype=np.uint8)
    for p in too_long:
        fate_of_kind[by_problem[p]] = TOO_LONG
    if settings.overlapping_problems == "drop":
        for p in {p for found in overlaps.values() for p in found}:
            fate_of_kind[by_problem[p]] = OVERLAP
    for p in conflicts:
        rejected = _rejected(survey, by_problem[p], counts, settings.conflicts)
        fate_of_kind[rejected] = CONFLICT
    duplicate = _duplicates(survey, kinds)
    heldout = _heldout(survey, settings, by_problem, fate_of_kind)
    problem_of_kind = np.array([row.problem for row in survey.distinct], dtype=np.intp)
    row_heldout = heldout[problem_of_kind[kinds]]
    fate = fate_of_kind[kinds]
    # A benchmark asks each of its problems once, whatever training does about duplicates.
    dropped = duplicate if settings.duplicates == "drop" else duplicate & row_heldout
    # The first row with an answer may itself have been rejected for no other reason than that it is a duplicate.
    fate[(fate == KEPT) & dropped] = DUPLICATE
    return Selection(
        fate=fate,
        row_heldout=row_heldout,
        duplicate=duplicate,
        part_of_row=np.repeat(np.asarray(parts, dtype=np.intp), survey.table_rows),
        conflicts=tuple(conflicts),
        overlaps=overlaps,
        too_long=tuple(too_long),
    )


def _rejected(survey: Survey, rows: Sequence[int], counts: npt.NDArray[np.intp], policy: str) -> list[int]:
    """The distinct rows of one problem that `policy` does not accept, where they disagree."""
    if policy == "keep":
        return []
    votes: dict[str, int] = defaultdict(int)
    for k in rows:
        votes[survey.distinct[k].answer_key] += int(counts[k])
    most = max(votes.values())
    winners = [key for key, count in votes.items() if count == most]
    accepted = winners[0] if policy == "majority" and len(winners) == 1 else None
    return [k for k in rows if survey.distinct[k].answer_key != accepted]


def _duplicates(survey: Survey, kinds: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Which rows repeat the problem and the answer of an earlier row, [rows]."""
    first: dict[tuple[int, str], int] = {}
    group_of_kind = np.empty(len(survey.distinct), dtype=np.intp)
    first_rows: list[int] = []
    for index, row in enumerate(survey.distinct):
        group = first.setdefault((row.problem, row.answer_key), len(first_rows))
        if group == len(first_rows):
            first_rows.append(row.first_row)
        group_of_kind[index] = group
    repeats: npt.NDArray[np.bool_] = np.arange(len(kinds)) != np.array(first_rows)[group_of_kind[kinds]]
    return repeats


def _heldout(
    survey: Survey, settings: Settings, by_problem: Mapping[int, Sequence[int]], fate: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bool_]:
    """Which problems are held out, [problems]: those with one accepted answer and the smallest ids of their part."""
    heldout = np.zeros(len(survey.problems), dtype=np.bool_)
    left: list[list[int]] = [[] for _ in settings.parts]
    alone: list[list[int]] = [[] for _ in settings.parts]
    for p, rows in by_problem.items():
        answers = {survey.distinct[k].answer_key for k in rows if fate[k] == KEPT}
        if answers:
            left[survey.problems[p].part].append(p)
        if len(answers) == 1:
            alone[survey.problems[p].part].append(p)
    for part, everything, candidates in zip(settings.parts, left, alone, strict=True):
        ids = [survey.problems[p].id for p in everything]
        wanted = part.heldout_problems
        heldout_ids(ids, wanted, part.name)  # something has to stay for training
        chosen = set(sorted(survey.problems[p].id for p in candidates)[:wanted])
        heldout[[p for p in candidates if survey.problems[p].id in chosen]] = True
    return heldout

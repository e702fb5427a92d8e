"""From rows to training and held-out problems: duplicates dropped, split by content hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.rows import Row
from dapo_cli.errors import UsageError, VerificationError


@dataclass(frozen=True, slots=True)
class Split:
    """What became of the rows. Train and held-out are in source order and share no problem."""

    train: tuple[tuple[str, Row], ...]
    """(problem id, row)"""
    heldout: tuple[tuple[str, Row], ...]
    duplicates: tuple[Row, ...]
    """Rows whose problem came before with the same answer."""
    conflicts: tuple[tuple[Row, ...], ...]
    """Rows of one problem that disagree about its answer; all of them are dropped."""


def split_rows(rows: Sequence[Row], heldout_problems: int) -> Split:
    """Drop duplicates and conflicts, and hold out the `heldout_problems` problems with the smallest ids.

    The choice depends on the texts alone: a problem that is held out stays so when rows are added or reordered, unless
    smaller ids join.

    Raises:
        UsageError: nothing would be left to train on.
    """
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        by_id.setdefault(problem_id(row.problem), []).append(row)
    agreed = {key: twins for key, twins in by_id.items() if len({row.answer.strip() for row in twins}) == 1}
    if heldout_problems >= len(agreed):
        raise UsageError(
            f"dataset.heldout_problems: got {heldout_problems}, but only {len(agreed)} problems are left once "
            "duplicates and conflicting answers are dropped; at least one has to stay for training"
        )
    heldout_ids = set(sorted(agreed)[:heldout_problems])
    return Split(
        train=tuple((key, twins[0]) for key, twins in agreed.items() if key not in heldout_ids),
        heldout=tuple((key, twins[0]) for key, twins in agreed.items() if key in heldout_ids),
        duplicates=tuple(row for twins in agreed.values() for row in twins[1:]),
        conflicts=tuple(tuple(twins) for key, twins in by_id.items() if key not in agreed),
    )


def assert_disjoint(train_texts: Sequence[str], heldout_texts: Sequence[str]) -> None:
    """Check by content hash that no held-out problem is trained on.

    Raises:
        VerificationError: some problem is in both, named by its text.
    """
    train_ids = {problem_id(text) for text in train_texts}
    shared = [text for text in heldout_texts if problem_id(text) in train_ids]
    if shared:
        raise VerificationError(
            f"prepared data: {len(shared)} held-out problems are also in the training data, first: {shared[0]!r}",
            hint="remove the prepared folder and run dapo prepare-data again",
        )

"""Which problems are held out: those with the smallest content hashes, whatever the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapo_cli.dataset.cards import DatasetCard
from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.rows import Row, sum_rows
from dapo_cli.errors import UsageError, VerificationError


@dataclass(frozen=True, slots=True)
class Split:
    """Rows with their problem ids. Train and held-out are in source order and share no problem."""

    train: tuple[tuple[str, Row], ...]
    heldout: tuple[tuple[str, Row], ...]


def heldout_ids(ids: Iterable[str], heldout_problems: int, name: str) -> frozenset[str]:
    """The `heldout_problems` smallest of the ids of dataset `name`.

    The choice depends on the texts alone: a problem that is held out stays so when rows are added or reordered, unless
    smaller ids join.

    Raises:
        UsageError: nothing would be left to train on.
    """
    ordered = sorted(set(ids))
    if heldout_problems >= len(ordered):
        raise UsageError(
            f"dataset.heldout_problems: got {heldout_problems}, but only {len(ordered)} problems of {name} are left "
            "once duplicates and conflicting answers are dropped; at least one has to stay for training"
        )
    return frozenset(ordered[:heldout_problems])


def generated_rows(card: DatasetCard) -> list[Row]:
    """The problems of a card that generates them.

    Raises:
        UsageError: the card reads a file; see also `sum_rows`.
    """
    if card.digits is None or card.terms is None or card.problems is None:
        raise UsageError(f"{card.name}: a dataset that is read from a file needs its source")
    return sum_rows(card.digits, card.terms, card.problems)


def generated_split(card: DatasetCard, heldout_problems: int) -> Split:
    """The problems of a generated dataset, split as `prepare` splits them, without writing anything.

    Raises:
        UsageError: the card reads a file, or nothing would be left to train on.
    """
    rows = [(problem_id(row.problem), row) for row in generated_rows(card)]
    held = heldout_ids((key for key, _ in rows), heldout_problems, card.name)
    return Split(
        train=tuple((key, row) for key, row in rows if key not in held),
        heldout=tuple((key, row) for key, row in rows if key in held),
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

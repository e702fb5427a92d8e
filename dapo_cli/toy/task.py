"""The toy task: two-digit sums, and the worked answers from which the toy model learns before any reinforcement.

The answers are those of a careless pupil: often a guess, sometimes rambling, sometimes worked out digit by digit, and
even then with slips. What reinforcement has to find is already there: working it out, carefully and without rambling.
"""

from __future__ import annotations

import random
import re

from dapo_cli.dataset.cards import DatasetCard, load_card
from dapo_cli.dataset.rows import Row
from dapo_cli.dataset.split import Split, assert_disjoint, generated_split
from dapo_cli.errors import DapoError

CARD = "toy_sums"
RESERVED_PROBLEMS = 1000
"""Problems kept out of the warm start, those with the smallest ids, so that a recipe may hold out as many."""

GUESS, SLIP, RAMBLE, RAMBLE_ON = 0.6, 0.2, 0.25, 0.6
"""Chances of guessing, of a slip in the units when working it out, of rambling, and of each further sentence."""
MOST_RAMBLING = 5


def warm_start_split() -> Split:
    """The toy sums with `RESERVED_PROBLEMS` held out; the warm start sees the training part only.

    Raises:
        VerificationError: training and held-out problems overlap.
    """
    split = generated_split(toy_card(), RESERVED_PROBLEMS)
    assert_disjoint([row.problem for _, row in split.train], [row.problem for _, row in split.heldout])
    return split


def warm_start_problem_ids() -> frozenset[str]:
    """Ids of all problems that the toy model has seen answers to; nothing among them may be held out for evaluation."""
    return frozenset(key for key, _ in warm_start_split().train)


def measured_problems() -> list[Row]:
    """The held-out problems on which the warm-started model is measured: those the card holds out."""
    card = toy_card()
    return [row for _, row in generated_split(card, card.heldout_problems).heldout]


def toy_card() -> DatasetCard:
    """The card of the toy task.

    Raises:
        DapoError: the installation lacks it.
    """
    card = load_card(CARD)
    if card is None:
        raise DapoError(f"data/{CARD}.yaml: the card of the toy task is missing", "Install dapo again from its wheel.")
    return card


def worked_answer(problem: str, slip: int = 0) -> str:
    """The sum of "What is A + B?" digit by digit; `slip` is added to the sum of the units.

    >>> worked_answer("What is 37 + 48?")
    '7+8=15\\n3+4+1=8\\nAnswer: 85'
    """
    first, second = terms(problem)
    units = max(first % 10 + second % 10 + slip, 0)
    carry = units // 10
    tens = first // 10 + second // 10 + carry
    carried = "+1" if carry else ""
    return (
        f"{first % 10}+{second % 10}={units}\n"
        f"{first // 10}+{second // 10}{carried}={tens}\n"
        f"Answer: {10 * tens + units % 10}"
    )


def careless_answer(problem: str, chance: random.Random) -> str:
    """What the careless pupil writes: guessed or worked out, with or without rambling first."""
    sentences = 0
    if chance.random() < RAMBLE:
        sentences = 1
        while sentences < MOST_RAMBLING and chance.random() < RAMBLE_ON:
            sentences += 1
    rambling = "Let me think.\n" * sentences
    if chance.random() < GUESS:
        guess = sum(terms(problem)) + chance.choice([-10, -1, 0, 1, 10])
        return f"{rambling}Answer: {guess}"
    slip = chance.choice([-1, 1]) if chance.random() < SLIP else 0
    return rambling + worked_answer(problem, slip)


def terms(problem: str) -> tuple[int, int]:
    """The two numbers of "What is A + B?".

    >>> terms("What is 37 + 48?")
    (37, 48)

    Raises:
        ValueError: the problem is not of that form.
    """
    found = re.fullmatch(r"What is (\d+) \+ (\d+)\?", problem)
    if found is None:
        raise ValueError(f"not a sum of two numbers: {problem!r}")
    return int(found[1]), int(found[2])

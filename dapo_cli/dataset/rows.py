"""Rows of a dataset: the cells of a file as checked texts, or generated sums."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from dapo_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """One valid row: where it stands, its problem, and its ground truth as text."""

    where: str
    problem: str
    answer: str


def sum_rows(digits: int, terms: int, problems: int | str) -> list[Row]:
    """Sums of `terms` numbers of `digits` digits, no leading zeros: all of them in order, or `problems` different ones.

    >>> rows = sum_rows(digits=2, terms=2, problems="all")
    >>> len(rows), rows[0].problem, rows[0].answer
    (8100, 'What is 10 + 10?', '20')

    Raises:
        UsageError: more different sums asked for than exist, or "all" of more than a million.
    """
    numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    count = len(numbers) ** terms
    if problems == "all" and count > 1_000_000:
        raise UsageError(f"card: problems: all would be {count} sums; give a number of at most 1000000")
    if isinstance(problems, int) and problems > count:
        raise UsageError(f"card: problems: got {problems}, there are only {count} different sums")
    if isinstance(problems, int):
        chosen = sorted(random.Random(0).sample(range(count), problems))
        draws = [[numbers[index // len(numbers) ** place % len(numbers)] for place in range(terms)] for index in chosen]
    else:
        draws = [list(values) for values in product(numbers, repeat=terms)]
    return [
        Row(f"sum {number}", f"What is {' + '.join(map(str, values))}?", str(sum(values)))
        for number, values in enumerate(draws, start=1)
    ]


def problem_text(where: str, column: str, cell: Any) -> str:
    """The problem in a cell: a text, or a conversation of one user message, as the published DAPO files have it.

    >>> problem_text("f:1", "prompt", [{"role": "user", "content": "2 + 2?"}])
    '2 + 2?'

    Raises:
        UsageError: anything else, or an empty text.
    """
    text = cell
    if isinstance(cell, list):
        roles = [message.get("role") if isinstance(message, dict) else None for message in cell]
        if roles != ["user"]:
            found = ", ".join(str(role) for role in roles) or "no message"
            raise UsageError(
                f"{where}: {column}: want a text or one user message, got messages of {found}",
                hint="a system prompt and solved examples belong into the recipe: prompt.system, prompt.few_shot",
            )
        text = cell[0].get("content")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where}: {column}: want a non-empty text, got {text!r}")
    return text


def answer_text(where: str, column: str, cell: Any, answer_after: str | None = None) -> tuple[str, str | None]:
    """The ground truth in a cell as text, and what it was rewritten from (None for a text, which stays as it is).

    >>> answer_text("f:1", "answer", 27.0), answer_text("f:1", "answer", "so 3 + 4 = 7\\n#### 7", "####")
    (('27', 'float 27.0'), ('7', None))

    Raises:
        UsageError: neither a non-empty text nor a finite number, or `answer_after` is not in it.
    """
    if isinstance(cell, str) and cell.strip():
        if answer_after is None:
            return cell, None
        _, mark, answer = cell.rpartition(answer_after)
        if not mark or not answer.strip():
            raise UsageError(f"{where}: {column}: want an answer after {answer_after!r}, got {cell[-80:]!r}")
        return answer.strip(), None
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell):
        raise UsageError(f"{where}: {column}: want a non-empty text or a number, got {cell!r}")
    # The scorer compares texts, so the float 27.0 has to become "27".
    text = str(int(cell)) if cell == int(cell) else repr(cell)
    return text, f"{type(cell).__name__} {cell!r}"

"""When two problem texts are the same problem, and which training problems a benchmark also asks."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

from dapo_cli.types import Problem


def problem_id(text: str) -> str:
    """First 16 hex digits of the SHA-256 of the normalised text: NFKC, white space folded to one space, stripped.

    >>> problem_id("What is  3 + 4?\\n") == problem_id("What is 3 + 4?") != problem_id("What is 3 - 4?")
    True
    """
    normalised = " ".join(unicodedata.normalize("NFKC", text).split())
    return hashlib.sha256(normalised.encode()).hexdigest()[:16]


def letters_and_digits(text: str) -> str:
    """The words and numbers of a text, case folded, without punctuation, signs or layout.

    Numbers stay apart, so that 1 + 23 is not 12 + 3. Texts that differ only in signs are taken for the same:
    for contamination the safe mistake.

    >>> letters_and_digits("Find $x$: 12 + 3 =\\\\ 15.")
    'find x 12 3 15'
    """
    return " ".join(re.findall(r"[^\W\d_]+|\d+", unicodedata.normalize("NFKC", text).casefold()))


def overlap(train: Iterable[Problem], benchmark_problems: Iterable[Problem]) -> list[str]:
    """Ids of the training problems whose words and numbers are those of a benchmark problem, in training order."""
    asked = {letters_and_digits(problem.text) for problem in benchmark_problems}
    return [problem.problem_id for problem in train if letters_and_digits(problem.text) in asked]

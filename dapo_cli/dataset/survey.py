"""The first reading of the rows: what is there, held as one small record per distinct problem and per distinct row.

Texts are not kept, so that memory grows with the distinct problems (about a kilobyte each) and by four bytes a row.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.dataset.identity import letters_and_digits, problem_id
from dapo_cli.dataset.near_duplicates import signature
from dapo_cli.dataset.prompt_template import TemplateStripper
from dapo_cli.dataset.readers import Batch
from dapo_cli.dataset.rows import answer_text, problem_text
from dapo_cli.dataset.settings import Settings
from dapo_cli.dataset.sources import Table
from dapo_cli.errors import UsageError

_INTEGER = re.compile(r"[+-]?\d+(,\d{3})*(\.0*)?")
REPEATS_REMEMBERED = 1000
"""Places of rows that repeat an earlier problem, kept for the examples of the data card."""


@dataclass(frozen=True, slots=True)
class DistinctProblem:
    """What is remembered of a problem: everything but its text."""

    id: str
    part: int
    shown: str
    """Its first 100 characters on one line."""
    words: bytes
    """Hash of its letters and digits: equal where a benchmark asks the same."""
    signature: npt.NDArray[np.uint32] | None  # [HASHES]; None for generated problems
    language: str
    oddities: tuple[str, ...]
    prompt_tokens: int | None
    """Length of its rendered prompt; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class DistinctRow:
    """Rows of the same text and answer, by the first of them."""

    problem: int
    """Index into `Survey.problems`."""
    where: str
    first_row: int
    answer: str
    answer_key: str
    """Equal for answers that say the same, such as 34 and 34.0."""
    rewritten: str | None
    templated: bool


@dataclass(slots=True)
class Survey:
    """All rows of all tables, in order."""

    problems: list[DistinctProblem] = field(default_factory=list)
    distinct: list[DistinctRow] = field(default_factory=list)
    distinct_of_row: array[int] = field(default_factory=lambda: array("I"))
    """[rows], index into `distinct`"""
    table_rows: list[int] = field(default_factory=list)
    repeats: dict[int, str] = field(default_factory=dict)
    """Row -> place, of the first rows that repeat an earlier problem."""

    def row_kinds(self) -> npt.NDArray[np.uint32]:
        """`distinct_of_row` as an array, [rows]."""
        return np.frombuffer(self.distinct_of_row, dtype=np.uint32)


def answer_key(answer: str) -> str:
    """What decides whether two ground truths disagree: the number for integers, else the text without outer space.

    >>> answer_key("1,007"), answer_key("34.0"), answer_key(" 034"), answer_key("x + 1 ")
    ('1007', '34', '34', 'x + 1')
    """
    text = unicodedata.normalize("NFKC", answer).strip().replace("\u2212", "-")
    if len(text) < 1000 and _INTEGER.fullmatch(text):
        return str(int(text.partition(".")[0].replace(",", "")))
    return text


class Surveyor:
    """Reads every table once.

    `measure` gives the length in tokens of a problem's rendered prompt; None: lengths are not measured.
    """

    def __init__(self, settings: Settings, measure: Callable[[str], int] | None) -> None:
        self._parts = settings.parts
        self._strip = TemplateStripper(settings.prompt_template).strip
        self._measure = measure
        self._survey = Survey()
        self._by_row: dict[bytes, int] = {}
        self._by_id: dict[str, int] = {}

    def read(self, tables: Sequence[Table]) -> Survey:
        """The survey of all tables.

        Raises:
            UsageError: a row that cannot be used, named by its place, or a part without rows.
        """
        rows_of_part = [0] * len(self._parts)
        for table in tables:
            before = len(self._survey.distinct_of_row)
            for batch in table.batches(self._parts[table.part]):
                self._read_batch(batch, table.part)
            self._survey.table_rows.append(len(self._survey.distinct_of_row) - before)
            rows_of_part[table.part] += self._survey.table_rows[-1]
        for part, rows in zip(self._parts, rows_of_part, strict=True):
            if not rows:
                files = [str(table.path) for table in tables if self._parts[table.part] is part]
                raise UsageError(f"{', '.join(files)}: the file holds no rows")
        return self._survey

    def _read_batch(self, batch: Batch, part: int) -> None:
        survey, known = self._survey, self._by_row
        for index, (problem, answer) in enumerate(zip(batch.problems, batch.answers, strict=True)):
            key = _row_key(problem, answer)
            kind = known.get(key)
            if kind is None:
                kind = self._add(batch.where(index), part, problem, answer)
                known[key] = kind
            elif len(survey.repeats) < REPEATS_REMEMBERED:
                survey.repeats[len(survey.distinct_of_row)] = batch.where(index)
            survey.distinct_of_row.append(kind)

    def _add(self, where: str, part: int, problem: Any, answer: Any) -> int:
        settings, survey = self._parts[part], self._survey
        columns = settings.columns
        names = (columns.problem_column, columns.answer_column) if columns else ("problem", "answer")
        after = columns.answer_after if columns else None
        text, templated = self._strip(problem_text(where, names[0], problem))
        truth, rewritten = answer_text(where, names[1], answer, after)
        row = len(survey.distinct_of_row)
        number = self._by_id.setdefault(problem_id(text), len(survey.problems))
        if number == len(survey.problems):
            survey.problems.append(self._describe(text, part))
        elif len(survey.repeats) < REPEATS_REMEMBERED:
            survey.repeats[row] = where
        survey.distinct.append(DistinctRow(number, where, row, truth, answer_key(truth), rewritten, templated))
        return len(survey.distinct) - 1

    def _describe(self, text: str, part: int) -> DistinctProblem:
        return DistinctProblem(
            id=problem_id(text),
            part=part,
            shown=shortened(text),
            words=words_hash(text),
            signature=None if self._parts[part].columns is None else signature(text),
            language=language(text),
            oddities=tuple(name for name, rule in ODDITIES.items() if rule.search(text)),
            prompt_tokens=self._measure(text) if self._measure else None,
        )


def _row_key(problem: Any, answer: Any) -> bytes:
    text = problem if type(problem) is str else repr(problem)
    truth = answer if type(answer) is str else repr((type(answer).__name__, answer))
    return blake2b(f"{text}\0{truth}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def words_hash(text: str) -> bytes:
    """Hash of the letters and digits of a text; see `identity.letters_and_digits`."""
    return blake2b(letters_and_digits(text).encode(), digest_size=8).digest()


ODDITIES = {
    "control characters": re.compile(r"[\x00-\x08\x0b-\x1f\x7f]"),
    "a \\boxed of its own": re.compile(r"\\boxed"),
    "a drawing in [asy]": re.compile(r"\[asy\]"),
    "an image": re.compile(r"!\[|\\includegraphics|<img\b"),
}
"""What a problem's text may hold that a reader of the data should know of."""

_SCRIPTS = {
    "Japanese": re.compile(r"[\u3040-\u30ff]"),
    "Korean": re.compile(r"[\uac00-\ud7af]"),
    "Chinese": re.compile(r"[\u4e00-\u9fff]"),
    "Cyrillic": re.compile(r"[\u0400-\u04ff]"),
    "Arabic": re.compile(r"[\u0600-\u06ff]"),
}


def language(text: str) -> str:
    """The first script found of those that tell, else Latin: a count for the data card, no more.

    >>> language("What is 2 + 2?"), language("\u6c42 x \u7684\u503c")
    ('Latin', 'Chinese')
    """
    return next((name for name, rule in _SCRIPTS.items() if rule.search(text)), "Latin")


def shortened(text: str, limit: int = 100) -> str:
    """A text on one line, cut to `limit` characters."""
    folded = " ".join(text[: 4 * limit].split())
    return folded if len(folded) <= limit else folded[: limit - 3] + "..."

"""The grid of an evaluation: a row per problem, a cell per response, as inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from markupsafe import Markup

from dapo_cli.evaluation.html_digest import KINDS, ProblemDigest, SampleDigest
from dapo_cli.evaluation.html_text import one_line

CELL, LABEL, COUNT = 12, 40, 52
WIDEST_BLOCKS = 36
"""Cells of a line in which several problems stand side by side, where problems have few samples."""
MAX_TITLED_CELLS = 8000
"""Beyond it, cells of one kind in a row are one shape, whose title counts them, to keep the page small."""


def problem_grid(problems: Sequence[ProblemDigest], linked: Collection[int]) -> Markup:
    """Problems x samples, coloured by what became of the response; `linked` problems lead to their responses."""
    samples = len(problems[0].samples)
    per_line = max(1, (WIDEST_BLOCKS + 1) // (samples + 1))
    cells = _titled_cells if len(problems) * samples <= MAX_TITLED_CELLS else _runs
    width = LABEL + per_line * (samples + 1) * CELL + (COUNT if per_line == 1 else 0)
    height = -(-len(problems) // per_line) * CELL
    parts: list[Markup] = []
    for start in range(0, len(problems), per_line):
        y = start // per_line * CELL
        parts.append(_label(start, y, linked))
        for column, problem in enumerate(problems[start : start + per_line]):
            x = LABEL + column * (samples + 1) * CELL
            parts.extend(cells(problem, start + column + 1, x, y))
        if per_line == 1:
            count = f"{problems[start].num_correct}/{samples}"
            parts.append(Markup(f'<text x="{width - COUNT}" y="{y + 10}">{count}</text>'))
    title = f"{len(problems)} problems x {samples} responses; the table below has the same in words"
    frame = Markup(f'<svg class="grid" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group"')
    return frame + Markup(' aria-label="{}">').format(title) + Markup("").join(parts) + Markup("</svg>")


def _label(index: int, y: int, linked: Collection[int]) -> Markup:
    text = Markup(f'<text class="end" x="{LABEL - 6}" y="{y + 10}">{index + 1}</text>')
    return Markup(f'<a href="#responses-{index + 1}">{text}</a>') if index in linked else text


def _titled_cells(problem: ProblemDigest, number: int, x: int, y: int) -> Iterator[Markup]:
    for position, sample in enumerate(problem.samples):
        yield _shape(sample, (x + position * CELL, y), 1, f"problem {number}, {sample_words(sample)}")


def _runs(problem: ProblemDigest, number: int, x: int, y: int) -> Iterator[Markup]:
    kind: Callable[[tuple[int, SampleDigest]], str] = lambda each: each[1].kind  # noqa: E731
    for _, group in groupby(enumerate(problem.samples), key=kind):
        run = list(group)
        position, sample = run[0]
        words = f"problem {number}, {len(run)} from sample {sample.record.sample}: {sample.kind.replace('_', ' ')}"
        yield _shape(sample, (x + position * CELL, y), len(run), words)


def _shape(sample: SampleDigest, place: tuple[int, int], cells: int, words: str) -> Markup:
    x, y = place
    frame = Markup(f'<rect class="{sample.kind}" x="{x}" y="{y}" width="{cells * CELL - 1}" height="{CELL - 1}">')
    return frame + Markup("<title>{}</title></rect>").format(words)


def sample_words(sample: SampleDigest) -> str:
    """One response in words: its number, what became of it, the answer and the length."""
    record = sample.record
    kind = sample.kind.replace("_", " ")
    cut = ", cut off at the limit" if sample.kind == "right" and record.finish_reason == "length" else ""
    answer = "" if record.prediction is None else f", answered {one_line(record.prediction, 40)}"
    length = "" if record.response_tokens is None else f", {record.response_tokens} tokens"
    return f"sample {record.sample}: {kind}{cut}{answer}{length}"


def legend(problems: Sequence[ProblemDigest]) -> list[tuple[str, str, int]]:
    """(class, words, number of responses) of every kind, those that do not occur included."""
    counts = dict.fromkeys(KINDS, 0)
    for problem in problems:
        for sample in problem.samples:
            counts[sample.kind] += 1
    return [(kind, KINDS[kind], count) for kind, count in counts.items()]

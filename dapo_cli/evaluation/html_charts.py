"""Charts of the HTML report as inline SVG: no script, colours from classes of the page, every value also in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from dapo_cli.evaluation.benchmark import PublishedScore
from dapo_cli.evaluation.html_text import one_line
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.statistics import LengthBin

WIDTH = 480
LEFT, RIGHT = 40, 18


def score_chart(result: EvaluationResult, published: Sequence[PublishedScore]) -> Markup:
    """avg@n with both intervals above the published scores, on one axis of 0 to 100%."""
    n, score = result.settings.samples, result.avg_at_n
    on_these, on_alike = result.interval_over_samples, result.interval_over_problems
    bottom = 44 + 36 * len(published) + 22
    parts = [
        _text(LEFT, 14, f"this evaluation: {100 * score:.1f} (avg@{n})", "strong"),
        _bar(_x(on_alike.low), _x(on_alike.high), (24, 6), "band", f"on problems like these: {_range(*on_alike)}"),
        _bar(_x(on_these.low), _x(on_these.high), (22, 10), "inner", f"on these problems: {_range(*on_these)}"),
        _dot(_x(score), 27, "mark", f"{100 * score:.1f}%"),
    ]
    for row, other in enumerate(published):
        y = 44 + 36 * row
        name = one_line(other.name, 52)
        parts += [
            _text(LEFT, y + 14, f"{name}: {other.score:.1f} (avg@{other.samples})"),
            _line(_x(0), y + 25, _x(1), y + 25, "rule"),
            _dot(_x(other.score / 100), y + 25, "other", f"{other.name}: {other.score:.1f}%, {other.source}"),
        ]
    parts.append(_line(_x(score), 27, _x(score), bottom - 18, "dashed"))
    for percent in range(0, 101, 20):
        parts.append(_text(_x(percent / 100), bottom, f"{percent}%", "middle"))
    words = f"avg@{n} {100 * score:.1f}%. 95% on these problems {_range(*on_these)}; on problems like these "
    words += "; ".join([_range(*on_alike), *(f"{each.name} {each.score:.1f}%" for each in published)])
    return _svg("Score against published results", words, (WIDTH, bottom + 6), parts)


def accuracy_chart(bins: Sequence[LengthBin]) -> Markup:
    """Share of right responses of each length, with the number of responses above its column; lengths are known."""
    bars = [(each.accuracy or 0.0, f"{_lengths(each)}: {each.right} of {each.responses} right") for each in bins]
    parts = _columns(bars, (24, 150), "right")
    step = (WIDTH - LEFT - RIGHT) / len(bins)
    parts += [
        _text(LEFT + (i + 0.5) * step, 146 - 126 * bars[i][0], str(each.responses), "middle small")
        for i, each in enumerate(bins)
        if each.responses
    ]
    parts += [_text(LEFT - 6, 28, "100%", "end"), _text(LEFT - 6, 150, "0%", "end"), *_length_axis(bins, 166)]
    return _svg("Accuracy by response length", "; ".join(words for _, words in bars), (WIDTH, 186), parts)


def length_chart(bins: Sequence[LengthBin]) -> Markup:
    """How many responses have each length: the right ones above, the others below, on one scale; lengths are known."""
    right, others = [each.right for each in bins], [each.responses - each.right for each in bins]
    most = max(*right, *others)
    parts: list[Markup] = []
    words = []
    for name, kind, counts, top in (("right", "right", right, 22), ("not right", "wrong", others, 132)):
        base = top + 80
        bars = [(n / most, f"{_lengths(each)}: {n} {name}") for n, each in zip(counts, bins, strict=True)]
        words += [label for _, label in bars]
        parts += [
            *_columns(bars, (top, base), kind),
            _text(LEFT, top - 8, f"{name}: {sum(counts)} responses", "strong"),
            _text(LEFT - 6, top + 5, str(most), "end"),
            _text(LEFT - 6, base, "0", "end"),
        ]
    return _svg("Response lengths", "; ".join(words), (WIDTH, 248), [*parts, *_length_axis(bins, 228)])


def pass_at_k_chart(values: Sequence[float]) -> Markup:
    """pass@k for k = 1, 2, ... on a logarithmic axis of k."""
    last = math.log2(len(values))

    def place(k: int, value: float) -> tuple[float, float]:
        return _x(math.log2(k) / last), 150 - 130 * value

    points = [place(k, value) for k, value in enumerate(values, start=1)]
    parts = [_line(_x(0), 150 - 130 * share, _x(1), 150 - 130 * share, "rule") for share in (0, 0.5, 1)]
    parts += [_text(LEFT - 6, 154 - 130 * share, f"{100 * share:.0f}%", "end") for share in (0, 0.5, 1)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(Markup(f'<polyline class="curve" points="{path}"/>'))
    marked = [2**power for power in range(int(last) + 1)]
    marked += [len(values)] if marked[-1] * 1.3 < len(values) else []
    for k in marked:
        x, y = points[k - 1]
        parts += [_dot(x, y, "mark", f"pass@{k} {100 * values[k - 1]:.1f}%"), _text(x, 168, str(k), "middle")]
        parts.append(_text(x, y - 8, f"{100 * values[k - 1]:.1f}", "end small" if k == len(values) else "middle small"))
    parts.append(_text(WIDTH / 2, 184, "k responses", "middle"))
    words = "; ".join(f"pass@{k} {100 * value:.1f}%" for k, value in enumerate(values, start=1))
    return _svg("pass@k", words, (WIDTH, 190), parts)


def _columns(bars: Sequence[tuple[float, str]], span: tuple[int, int], kind: str) -> list[Markup]:
    """A column for each (share of the height, words) between the y's of `span`, and the base line."""
    top, base = span
    width = (WIDTH - LEFT - RIGHT) / len(bars)
    parts = [_line(_x(0), base, _x(1), base, "rule")]
    for index, (share, words) in enumerate(bars):
        left, height = LEFT + index * width, share * (base - top)
        parts.append(_bar(left + 1, left + width - 1, (base - height, height), kind, words))
    return parts


def _length_axis(bins: Sequence[LengthBin], y: float) -> list[Markup]:
    """The first length of every few bins, at the bin's left edge, and the longest at the end."""
    every = math.ceil(len(bins) / 4)
    step = (WIDTH - LEFT - RIGHT) / len(bins)
    marks = [_text(LEFT + i * step, y, str(bins[i].low), "middle") for i in range(0, len(bins), every)]
    return [
        *marks,
        _text(WIDTH - 2, y + 16, f"up to {bins[-1].high}", "end"),
        _text(WIDTH / 2, y + 16, "tokens", "middle"),
    ]


def _lengths(each: LengthBin) -> str:
    return f"{each.low} to {each.high} tokens"


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def _bar(left: float, right: float, span: tuple[float, float], kind: str, words: str) -> Markup:
    """A rectangle; `span` is its y and its height."""
    shape = f'x="{left:.1f}" y="{span[0]:.1f}" width="{max(right - left, 0.5):.1f}" height="{span[1]:.1f}"'
    return Markup('<rect class="{}" {}><title>{}</title></rect>').format(kind, Markup(shape), words)


def _dot(x: float, y: float, kind: str, words: str) -> Markup:
    place = Markup(f'cx="{x:.1f}" cy="{y:.1f}"')
    return Markup('<circle class="{}" {} r="5"><title>{}</title></circle>').format(kind, place, words)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup(f'<line class="{escape(kind)}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')


def _text(x: float, y: float, words: str, kind: str = "") -> Markup:
    place = Markup(f'x="{x:.1f}" y="{y:.1f}"')
    return Markup('<text class="{}" {}>{}</text>').format(kind, place, words)


def _svg(title: str, words: str, size: tuple[float, float], parts: Iterable[Markup]) -> Markup:
    """One chart; a screen reader says the title and then the values in words."""
    frame = Markup('<svg role="img" viewBox="0 0 {:.0f} {:.0f}" aria-label="{}"><title>{}</title><desc>{}</desc>')
    return frame.format(*size, f"{title}. {words}", title, words) + Markup("").join(parts) + Markup("</svg>")

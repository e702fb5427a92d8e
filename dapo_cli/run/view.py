"""The text of the live view and of the plain line: pure functions of what is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.text import Text

_SCORE = re.compile(r"eval/[^/]+/avg@\d+")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"
_BAR_COLUMNS = 24
CURVES = (
    ("length", "rollout/response_length_mean"),
    ("accuracy", "rollout/accuracy"),
    ("entropy", "update/entropy"),
    ("probability", "rollout/probability_mean"),
)
"""What the paper reads a run by, with accuracy for the reward, and how each is called on the screen."""
_PHASES = ("generate", "logprobs", "update", "sync", "eval", "checkpoint")
_MOST_POINTS = 96


@dataclass
class Curve:
    """A metric over the whole run in at most `_MOST_POINTS` means of equally many steps."""

    points: list[float] = field(default_factory=list)
    _steps_per_point: int = 1
    _sum: float = 0.0
    _count: int = 0

    def add(self, value: float) -> None:
        """Take the value of a further step."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._steps_per_point:
            return
        self.points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.points) == _MOST_POINTS:
            self.points = [(left + right) / 2 for left, right in zip(self.points[::2], self.points[1::2], strict=True)]
            self._steps_per_point *= 2


@dataclass
class View:
    """What the live view shows; one thread writes it, another draws it."""

    title: str
    total_steps: int
    ascii_only: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=lambda: {key: Curve() for _, key in CURVES})
    evaluations: list[str] = field(default_factory=list)
    """The first evaluation and the last, ready to print."""
    stage: str | None = None
    stage_started: float = 0.0
    seconds_left: float | None = None
    stopping: str | None = None

    def set_step(self, row: Mapping[str, Any]) -> None:
        """Take over a finished step's line."""
        self.row = row
        for _, key in CURVES:
            if row.get(key) is not None:
                self.curves[key].add(row[key])
        self.set_evaluation(row)

    def set_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Take over the headline of an evaluation, if `metrics` has one."""
        text = headline(metrics)
        if text is not None and self.evaluations[-1:] != [text]:
            self.evaluations = [*self.evaluations[:1], text]


def render(view: View, now: float, columns: int) -> Text:
    """The live view, each line at most `columns` wide; `now` is on the clock of `stage_started`."""
    step = int(view.row.get("step", 0))
    done = min(_BAR_COLUMNS, _BAR_COLUMNS * step // view.total_steps)
    full, empty = ("#", ".") if view.ascii_only else ("━", "─")
    left = "" if view.seconds_left is None else f"  about {duration(view.seconds_left)} left"
    lines = [f"{view.title}  {full * done}{empty * (_BAR_COLUMNS - done)}  step {step}/{view.total_steps}{left}"]
    lines += [_curve_line(view, name, key, columns) for name, key in CURVES]
    lines.append("  ".join(f"{name} {value}" for name, value in _fields(view.row) if name in ("reward", "kept")))
    if view.evaluations:
        lines.append("evaluation " + " -> ".join(view.evaluations))
    phases = [f"{name} {view.row[f'time/{name}']:.1f} s" for name in _PHASES if view.row.get(f"time/{name}")]
    if phases:
        lines.append("last step: " + "  ".join(phases))
    if view.stage is not None:
        lines.append(f"now: {view.stage} {duration(now - view.stage_started)}")
    if view.stopping is not None:
        lines.append(view.stopping)
    text = Text("\n".join(line[:columns] for line in lines), no_wrap=True, overflow="ellipsis")
    text.highlight_words([view.title], "bold")
    return text


def _curve_line(view: View, name: str, key: str, columns: int) -> str:
    """Name, last value, curve from its lowest to its highest, and those two."""
    points = view.curves[key].points
    decimals = 1 if name == "length" else 3
    text = f"{name:<12}{number(view.row, key, decimals):>8}  "
    if not points:
        return text
    low, high = min(points), max(points)
    span = f"  {low:.{decimals}f} to {high:.{decimals}f}"
    room = max(columns - len(text) - len(span), 1)
    shown = resampled(points, min(room, 48))
    scaled = [(value - low) / (high - low) if high > low else 0.5 for value in shown]
    return f"{text}{sparkline(scaled, view.ascii_only)}{span}"


def resampled(values: Sequence[float], count: int) -> Sequence[float]:
    """At most `count` means of neighbours.

    >>> resampled([1.0, 3.0, 5.0, 7.0], 2), resampled([1.0], 5)
    ([2.0, 6.0], [1.0])
    """
    if len(values) <= count:
        return values
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in pairwise(edges)]


def plain_line(row: Mapping[str, Any], total_steps: int) -> str:
    """One step in fixed fields, `name value` each, for logs; `-` stands for what this step does not have.

    >>> plain_line({"step": 3, "rollout/accuracy": 0.5, "rollout/kept_groups": 2, "rollout/drawn_problems": 3}, 9)
    'step 3/9  accuracy 0.500  reward -  length -  entropy -  kept 2/3  eval -  seconds -'
    """
    fields = [("step", f"{row['step']}/{total_steps}"), *_fields(row)]
    fields += [("eval", headline(row) or "-"), ("seconds", number(row, "time/step", 1))]
    return "  ".join(f"{name} {value}" for name, value in fields)


def headline(metrics: Mapping[str, Any]) -> str | None:
    """The avg@n of an evaluation, such as `heldout avg@4 0.325`; None where there is none."""
    key = score_key(metrics)
    return None if key is None else f"{' '.join(key.split('/')[1:])} {metrics[key]:.3f}"


def score_key(metrics: Mapping[str, Any]) -> str | None:
    """The key of an evaluation's avg@n, such as `eval/heldout/avg@4`; None where there is none."""
    return next((key for key, value in metrics.items() if value is not None and _SCORE.fullmatch(key)), None)


def number(row: Mapping[str, Any], key: str, decimals: int = 3) -> str:
    """A value of `row` for people; `-` when it is missing, `nan` when it was not finite."""
    if key not in row:
        return "-"
    return "nan" if row[key] is None else f"{row[key]:.{decimals}f}"


def sparkline(values: Sequence[float], ascii_only: bool = False) -> str:
    """Fractions from 0 to 1 as small bars.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    return "".join(blocks[min(int(value * len(blocks)), len(blocks) - 1)] for value in values)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(7.2), duration(280), duration(7500)
    ('7 s', '4 min 40 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _fields(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    kept = "-"
    if "rollout/kept_groups" in row and "rollout/drawn_problems" in row:
        kept = f"{row['rollout/kept_groups']}/{row['rollout/drawn_problems']}"
    return [
        ("accuracy", number(row, "rollout/accuracy")),
        ("reward", number(row, "reward/mean")),
        ("length", number(row, "rollout/response_length_mean", 1)),
        ("entropy", number(row, "update/entropy")),
        ("kept", kept),
    ]

"""A few hundred of a run's rollouts that are worth reading, and how often responses reflect: one pass over files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo_cli.errors import DapoError
from dapo_cli.evaluation.statistics import Interval
from dapo_cli.evaluation.statistics.intervals import wilson
from dapo_cli.report.reflection import first_reflection
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.samples import step_files

LABELS = ("best", "worst", "longest", "truncated", "no answer", "verifier error", "flipped", "reflects")
"""Why a rollout was chosen."""

_PER_STEP = 7
"""At most one of each label but `flipped`."""
_Z = 1.96

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenRollout:
    """A rollout with the reasons why it is shown."""

    step: int
    labels: tuple[str, ...]
    row: Row


@dataclass(frozen=True, slots=True)
class ReflectionPoint:
    """How many of a step's stored responses re-check, go back or reconsider."""

    step: int
    responses: int
    reflecting: int

    @property
    def interval(self) -> Interval:
        """95% (Wilson) of the share among responses like these."""
        return wilson(self.reflecting / self.responses, self.responses, _Z)


@dataclass(slots=True)
class Reading:
    """What one pass over a run's rollouts found."""

    chosen: list[ChosenRollout] = field(default_factory=list)
    reflections: list[ReflectionPoint] = field(default_factory=list)
    rollouts: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rollout is, and what became of its group."""

    step: int
    offset: int
    mostly_right: bool


def read_rollouts(run: RunDirectory, limit: int) -> Reading:
    """At most `limit` rollouts of a run, spread over its steps, and the reflections of every step.

    Memory holds the chosen rollouts and one entry per problem. Equal files give equal choices.

    Raises:
        DapoError: a line is not a rollout.
    """
    files = step_files(run)
    steps = sorted(files)
    reading = Reading()
    flips: list[tuple[_Place, _Place]] = []
    seen: dict[str, _Place] = {}
    shown_steps = set(spread(steps, max(1, (limit - limit // 4) // _PER_STEP)))
    for step in steps:
        candidates: dict[str, Row] = {}
        reflecting = count = 0
        groups: dict[str, list[tuple[int, bool]]] = {}
        for offset, row in rows_of(files[step]):
            count += 1
            reflects = first_reflection(row["response"]) is not None
            reflecting += reflects
            groups.setdefault(row["problem_id"], []).append((offset, row["outcome"] == "right"))
            if step in shown_steps:
                _consider(candidates, row, reflects)
        if count:
            reading.reflections.append(ReflectionPoint(step, count, reflecting))
            reading.rollouts += count
        for problem, members in groups.items():
            now = _placed(step, members)
            before = seen.get(problem)
            if before is not None and before.mostly_right != now.mostly_right:
                flips.append((before, now))
            seen[problem] = now
        reading.chosen += _labelled(step, candidates)
    room = max(0, limit - len(reading.chosen)) // 2
    for pair in spread(flips, room):
        reading.chosen += [ChosenRollout(place.step, ("flipped",), _row_at(files[place.step], place)) for place in pair]
    reading.chosen.sort(key=lambda chosen: (chosen.step, chosen.row["problem_id"], chosen.row["sample"]))
    return reading


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spaced, the first and the last among them.

    >>> spread([1, 2, 3, 4, 5], 3), spread([1, 2], 5), spread([1, 2, 3], 0)
    ([1, 3, 5], [1, 2], [])
    """
    if count <= 0:
        return []
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def _consider(candidates: dict[str, Row], row: Row, reflects: bool) -> None:
    """Keep the row where it is the first or the most extreme of its label in this step."""
    reward = row["reward"]
    for label, better in (("best", 1), ("worst", -1)):
        held = candidates.get(label)
        if held is None or better * reward > better * held["reward"]:
            candidates[label] = row
    if "longest" not in candidates or row["tokens"] > candidates["longest"]["tokens"]:
        candidates["longest"] = row
    for label, applies in (
        ("truncated", row["finish_reason"] == "length"),
        ("no answer", row["outcome"] == "no_answer"),
        ("verifier error", row["outcome"] == "verifier_error" or row["verifier_error"] is not None),
        ("reflects", reflects),
    ):
        if applies:
            candidates.setdefault(label, row)


def _labelled(step: int, candidates: Mapping[str, Row]) -> Iterator[ChosenRollout]:
    by_row: dict[int, tuple[Row, list[str]]] = {}
    for label in LABELS:
        if label in candidates:
            row = candidates[label]
            by_row.setdefault(id(row), (row, []))[1].append(label)
    for row, labels in by_row.values():
        yield ChosenRollout(step, tuple(labels), row)


def _placed(step: int, members: Sequence[tuple[int, bool]]) -> _Place:
    """A group by its majority, and a rollout that is on the side of it."""
    mostly_right = sum(right for _, right in members) * 2 > len(members)
    offset = next(offset for offset, right in members if right == mostly_right)
    return _Place(step, offset, mostly_right)


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """(byte offset, rollout) of every line of a file of rollouts.

    Raises:
        DapoError: a line is not a rollout.
    """
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield offset, _parse(line, f"{path}:{number}")
            offset += len(line)


def _row_at(path: Path, place: _Place) -> Row:
    with path.open("rb") as file:
        file.seek(place.offset)
        return _parse(file.readline(), str(path))


def _parse(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DapoError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict) or "problem_id" not in row or "response" not in row:
        raise DapoError(f"{where}: not a rollout")
    return row

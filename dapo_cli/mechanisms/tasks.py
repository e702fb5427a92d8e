"""The synthetic tasks: problems, what the policy writes before any reinforcement, and the prefixes that are probed.

Prompts and responses are digits, letters and signs, one token each. A response is scored by the rule `dapo` behind
the text `Answer: `, where only what follows the last `=` counts; many answers have a scorer of their own.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo_cli.mechanisms.schema import Loops, ManyAnswers, MixedDifficulty, RareBranch, Task
from dapo_cli.mechanisms.scorers import RIGHT_DIGITS
from dapo_cli.types import Problem

FORMAT_VERSION = 1
"""Raised when the same settings would give another task or another warm-started policy."""
DIGITS = string.digits
FILLER = "."
BRANCH = "="
SHOWN_BRANCH = 0.8
"""Share of the rare branch among the demonstrations, which are weighed so that it stays rare."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A response for the warm start; `first_weight` is what its first token counts, the others count 1."""

    response: str
    first_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class BuiltTask:
    """A task ready to be trained on."""

    problems: tuple[Problem, ...]
    demonstrate: Callable[[Problem, random.Random, float], Demonstration]
    """A response for the warm start, at its progress from 0 to 1."""
    probes: tuple[tuple[Problem, str], ...]
    """Prompts and beginnings of responses whose mean probability is the value `share`."""
    warm_updates: int
    warm_learning_rate: float = 4e-3


def build_task(task: Task) -> BuiltTask:
    """Problems and policy of a task; the same every time."""
    if isinstance(task, RareBranch):
        return _rare_branch(task)
    if isinstance(task, ManyAnswers):
        return _many_answers()
    if isinstance(task, MixedDifficulty):
        return _mixed_difficulty(task)
    return _loops(task)


def make_problem(text: str, ground_truth: str) -> Problem:
    """A problem whose prompt is its text."""
    return Problem(text, text, ({"role": "user", "content": text},), ground_truth, "mechanisms")


def _rare_branch(task: RareBranch) -> BuiltTask:
    sums = [(first, second) for first in range(10) for second in range(10)]
    problems = tuple(make_problem(f"{first}{second}?", str(first + second)) for first, second in sums)

    def demonstrate(problem: Problem, chance: random.Random, progress: float) -> Demonstration:
        # The rare way is shown often and weighed back, so that it is learned well and stays rare.
        if chance.random() < SHOWN_BRANCH:
            weight = task.branch_probability / SHOWN_BRANCH
            return Demonstration(f"{BRANCH}{problem.text[0]}+{problem.text[1]}={problem.ground_truth}", weight)
        weight = (1 - task.branch_probability) / (1 - SHOWN_BRANCH)
        return Demonstration(str(chance.randrange(10) + chance.randrange(10)), weight)

    probes = tuple((problem, BRANCH) for problem in problems)
    return BuiltTask(problems, demonstrate, probes, warm_updates=1000, warm_learning_rate=6e-3)


def _many_answers() -> BuiltTask:
    problems = tuple(make_problem(f"{digit}?", "any") for digit in DIGITS)

    def demonstrate(problem: Problem, chance: random.Random, progress: float) -> Demonstration:
        return Demonstration("".join(chance.choices(DIGITS, k=len(RIGHT_DIGITS))))

    return BuiltTask(problems, demonstrate, (), warm_updates=200)


def _mixed_difficulty(task: MixedDifficulty) -> BuiltTask:
    solved, impossible = round(500 * task.solved), round(500 * task.impossible)
    problems = []
    for number in range(500):
        kind = "s" if number < solved else "i" if number < solved + impossible else "t"
        digit = DIGITS[number % 10]
        text = f"{kind}{_letters(number // 10)}{digit}?"
        problems.append(make_problem(text, "none" if kind == "i" else digit))

    def demonstrate(problem: Problem, chance: random.Random, progress: float) -> Demonstration:
        accuracy = {"s": 1.0, "i": 0.1, "t": task.learnable_accuracy}[problem.text[0]]
        return Demonstration(_answer(problem.text[-2], accuracy, chance))

    probes = tuple((problem, problem.ground_truth) for problem in problems if problem.text[0] == "t")
    return BuiltTask(tuple(problems), demonstrate, probes, warm_updates=1000)


def _loops(task: Loops) -> BuiltTask:
    problems = _digits_to_repeat()

    def demonstrate(problem: Problem, chance: random.Random, progress: float) -> Demonstration:
        filler, accuracy = 0, task.accuracy
        if chance.random() < task.loop_probability:
            filler, accuracy = 1, task.loop_accuracy
            while chance.random() >= task.leave_probability and filler < LONGEST_LOOP:
                filler += 1
        return Demonstration(FILLER * filler + "=" + _answer(problem.ground_truth, accuracy, chance))

    probes = tuple((problem, FILLER) for problem in problems[:64])
    return BuiltTask(problems, demonstrate, probes, warm_updates=800)


LONGEST_LOOP = 128


def _digits_to_repeat() -> tuple[Problem, ...]:
    """500 prompts of two letters and the digit that is the answer."""
    return tuple(make_problem(f"{_letters(number // 10)}{number % 10}?", str(number % 10)) for number in range(500))


def _letters(number: int) -> str:
    """Two letters that stand for a number below 676."""
    return string.ascii_lowercase[number // 26] + string.ascii_lowercase[number % 26]


def _answer(right: str, accuracy: float, chance: random.Random) -> str:
    if chance.random() < accuracy:
        return right
    return chance.choice([digit for digit in DIGITS if digit != right])


def measured_problems(problems: Sequence[Problem], count: int) -> tuple[Problem, ...]:
    """`count` problems spread evenly over all, or all where there are fewer."""
    count = min(count, len(problems))
    return tuple(problems[index * len(problems) // count] for index in range(count))

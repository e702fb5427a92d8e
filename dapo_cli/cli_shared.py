"""What several commands share: how a recipe is named, and how notes, progress and results are shown."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dapo_cli.evaluation.result import EvaluationResult
    from dapo_cli.run.directory import RunDirectory

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a packaged one.")]
DEFAULT_RECIPE = "dapo_qwen32b"
SECONDS_BETWEEN_LINES = 30
DefaultRecipeArgument = Annotated[
    str, typer.Argument(metavar="[RECIPE]", help=f"A recipe file or a packaged one; default {DEFAULT_RECIPE}.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the recipe; repeatable."),
]


def typed(recipe: str, overrides: list[str] | None) -> str:
    """The recipe as the user typed it, for the commands that messages name."""
    return " ".join([shlex.quote(recipe), *(f"--set {shlex.quote(override)}" for override in overrides or [])])


def note(text: str) -> None:
    """Show something the user should know, beside what a script reads from standard output."""
    typer.echo(text, err=True)


def show_evaluation(run: RunDirectory, result: EvaluationResult) -> None:
    """The result beside the run's evaluation from before training where there is one."""
    from rich.console import Console

    from dapo_cli.evaluation.command import baseline_of
    from dapo_cli.evaluation.report import comparison_table, evaluation_table

    baseline = baseline_of(run, result)
    Console().print(evaluation_table(result) if baseline is None else comparison_table(baseline, result))


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Responses done and time left: a bar on a terminal, elsewhere a line every half minute."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    columns = (TextColumn("responses"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _progress_lines() -> Callable[[int, int], None]:
    started: list[tuple[float, int]] = []
    shown = 0.0

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if not started:
            started.append((now, done))
        elif now - max(shown, started[0][0]) >= SECONDS_BETWEEN_LINES and done > started[0][1]:
            shown = now
            left = (now - started[0][0]) / (done - started[0][1]) * (total - done)
            note(f"{done} of {total} responses, about {left / 60:.0f} min left")

    return show


def show_notes(notes: tuple[str, ...]) -> None:
    """Show every note."""
    for text in notes:
        note(text)

"""`dapo reward`: look into the scoring of responses. Heavy imports are inside the command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

reward_app = typer.Typer(no_args_is_help=True, help="Look into the scoring of responses.")


@reward_app.callback()
def options() -> None:
    """Look into the scoring of responses."""


@reward_app.command("explain")
def explain_response(
    gold: Annotated[str, typer.Option("--gold", metavar="G", help="The ground truth.")],
    text: Annotated[str | None, typer.Argument(help="The response, or - to read it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the response from this file.")] = None,
    scorer: Annotated[
        list[str] | None, typer.Option(help="As reward.scorer, dapo where it is left out; repeat it for a list.")
    ] = None,
) -> None:
    """Show what a scorer extracts from a response, how it is normalised and compared, and the verdict."""
    from dapo_cli.errors import UsageError
    from dapo_cli.recipe.scorers import check_names

    if (text is None) == (file is None):
        raise UsageError(
            "give either the TEXT of a response or --file", hint="dapo reward explain 'Answer: 34' --gold 34"
        )
    names = tuple(scorer or ["dapo"])
    check_names(names)
    if file is not None:
        response = file.read_text(encoding="utf-8", errors="replace")
    else:
        response = sys.stdin.read() if text == "-" else str(text)
    from rich.console import Console

    from dapo_cli.recipe.schema import Reward
    from dapo_cli.reward.explain import explain, render

    console = Console(highlight=False)
    for explanation in explain(response, gold, Reward(scorer=names)):
        console.print(render(explanation))

"""The command `dapo mechanisms`: what each technique does, on tasks of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli_shared import note


def mechanisms(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Mechanisms, or files of your own; all without any.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="Pairs of runs, in place of what each says.")] = None,
    out: Annotated[Path, typer.Option(help="Runs and results; resumes.")] = Path("runs/_mechanisms"),
) -> None:
    """Run the mechanism bench: paired runs with and without each technique, and what they say of its prediction."""
    from rich.console import Console

    from dapo_cli.mechanisms.bench import run_bench, runs_of
    from dapo_cli.mechanisms.definition import find_mechanism, load_definition, mechanism_names
    from dapo_cli.mechanisms.tables import terminal_table, write_results
    from dapo_cli.mechanisms.verdicts import judge

    definitions = [load_definition(find_mechanism(name)) for name in names or mechanism_names()]
    try:
        curves = run_bench(runs_of(definitions, seeds), out, note)
    except KeyboardInterrupt:
        note(f"{out}: what was done is kept; the same command goes on")
        raise typer.Exit(130) from None
    verdicts = judge(definitions, curves)
    paths = write_results(verdicts, out)
    Console().print(terminal_table(verdicts))
    typer.echo(f"{', '.join(map(str, paths))}")

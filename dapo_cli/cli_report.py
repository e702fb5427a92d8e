"""The commands `dapo report`, `dapo samples` and `dapo watch`: what runs do and did, on a page and in the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli_shared import note

_SHOWN_FINDINGS = 5


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; several are overlaid.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    reference: Annotated[
        Path | None, typer.Option(help="A history exported from wandb (csv, json), drawn under the curves.")
    ] = None,
) -> None:
    """Write one HTML page about runs: curves, evaluations, findings, rollouts."""
    from dapo_cli.report.page import write_report

    reported = write_report(runs, out, reference, note)
    for run in reported:
        typer.echo(f"{run.name}: {run.steps} steps")
        for finding in run.findings[:_SHOWN_FINDINGS]:
            typer.echo(f"  {finding.severity:5}  {finding.title}: {finding.evidence}")
        if len(run.findings) > _SHOWN_FINDINGS:
            typer.echo(f"  and {len(run.findings) - _SHOWN_FINDINGS} more on the page")
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens in any browser, offline")
    typer.echo(f"next: dapo samples {shlex.quote(str(runs[0]))}")


def samples(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    step: Annotated[int | None, typer.Option(min=1, help="The newest with rollouts without it.")] = None,
    order: Annotated[str | None, typer.Option(help="best, worst or longest first; else spread over the step.")] = None,
    outcome: Annotated[str | None, typer.Option(help="right, wrong, no_answer or verifier_error.")] = None,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only responses cut at the limit.")] = False,
    problem: Annotated[str | None, typer.Option(help="Only this problem; the beginning of its id is enough.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out of long texts.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Read what the policy wrote in a step of a run."""
    from dapo_cli.report.samples_command import Wanted, find_samples, sample_lines, samples_json
    from dapo_cli.run.directory import RunDirectory

    wanted = Wanted(step=step, order=order, outcome=outcome, truncated=truncated, problem=problem, limit=limit)
    found, rows, available = find_samples(RunDirectory.open(run), wanted)
    if json:
        typer.echo(samples_json(found, rows))
        return
    shown = None
    for row in rows:
        for line in sample_lines(row, full=full, prompt=row["prompt"] != shown):
            typer.echo(line)
        typer.echo("")
        shown = row["prompt"]
    typer.echo(f"{run}: {len(rows)} of {available} stored rollouts of step {found} that were asked for")


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; one that is not there yet is awaited.")],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks at its files.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show how it stands, and end.")] = False,
) -> None:
    """Watch a run from another terminal; reads its files and touches nothing."""
    from dapo_cli.run.watch import watch as watch_run

    try:
        watch_run(run, every, once)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None

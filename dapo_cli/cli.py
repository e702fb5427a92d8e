"""The command line: parses, calls one function, shows what came out. Everything heavy is imported inside a command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli_eval import evaluate
from dapo_cli.cli_mechanisms import mechanisms
from dapo_cli.cli_models import infer, serve
from dapo_cli.cli_report import report, samples, watch
from dapo_cli.cli_shared import (
    DEFAULT_RECIPE,
    DefaultRecipeArgument,
    RecipeArgument,
    SetOption,
    note,
    show_evaluation,
    show_notes,
    typed,
)
from dapo_cli.reward.command import reward_app

app = typer.Typer(
    name="dapo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(reward_app, name="reward")


def _show_version(wanted: bool) -> None:
    if wanted:
        from dapo_cli import __version__

        typer.echo(f"dapo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reproduce, check and extend DAPO: prepare data, train, evaluate, convert. Each command reads one recipe."""


@app.command("prepare-data")
def prepare_data(
    recipe: DefaultRecipeArgument = DEFAULT_RECIPE,
    source: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_ID", help="Read this file, folder or hub id instead of dataset.source."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write here instead of runs/_data/<name>-<hash>.")] = None,
    set_: SetOption = None,
) -> None:
    """Turn a dataset into checked training and held-out problems with a data card."""
    from dapo_cli.preparation import prepare_recipe, summary
    from dapo_cli.recipe.loading import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    show_notes(loaded.notes)
    prepared = prepare_recipe(loaded.recipe, source, out)
    for line in summary(prepared):
        typer.echo(line)
    place = [] if out is None else [f"dataset.prepared={out}"]
    typer.echo(f"next: dapo train {typed(recipe, [*(set_ or []), *place])}")


@app.command()
def check(
    recipe: RecipeArgument,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
    set_: SetOption = None,
) -> None:
    """Print the resolved recipe, where each value comes from, and the numbers that follow from it."""
    from dapo_cli.recipe.explain import check_json, render_check
    from dapo_cli.recipe.loading import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    if json:
        from json import dumps

        typer.echo(dumps(check_json(loaded), indent=2))
        return
    from rich.console import Console

    Console().print(render_check(loaded))
    from dapo_cli.dataset.settings import prepare_command

    typer.echo(f"next: {prepare_command(loaded.recipe, typed(recipe, set_))}")


@app.command()
def train(
    recipe: RecipeArgument,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory; default runs/<recipe>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue at the newest complete checkpoint.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an existing run aside and start over.")] = False,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="RUN[@STEP]", help="Start a new run from this checkpoint.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Train by one recipe."""
    from dapo_cli.errors import UsageError
    from dapo_cli.recipe.loading import load_recipe

    if resume and (fresh or from_ is not None):
        raise UsageError("--resume cannot be combined with --fresh or --from")
    loaded = load_recipe(recipe, set_ or [])
    show_notes(loaded.notes)
    from dapo_cli.launch import start_training
    from dapo_cli.run.opening import Start
    from dapo_cli.run.recorder import TIME_LIMIT
    from dapo_cli.run.signals import StopRequested

    start = Start(run_dir or Path("runs") / loaded.name, resume, fresh, from_)
    try:
        finished = start_training(loaded, typed(recipe, set_), start, note)
    except StopRequested as stop:
        place = f" --run-dir {shlex.quote(str(run_dir))}" if run_dir else ""
        again = f"dapo train {typed(recipe, set_)}{place} --resume"
        typer.echo(f"{start.run_dir}: {stop.message}; next: {again}")
        raise typer.Exit(0 if TIME_LIMIT in stop.message else stop.exit_code) from None
    _show_finished(finished.run.path, finished.already_finished, finished.state.step)
    if finished.evaluation is not None:
        show_evaluation(finished.run, finished.evaluation)
    typer.echo(f"next: dapo eval --run {finished.run.path}")


def _show_finished(run: Path, already: bool, step: int) -> None:
    if already:
        typer.echo(f"{run}: finished, {step} steps are done; a higher train.steps goes on from there with --resume")
    else:
        from dapo_cli.run.directory import RunDirectory
        from dapo_cli.run.metrics import read, time_shares
        from dapo_cli.run.samples import step_files

        size = sum(file.stat().st_size for file in step_files(RunDirectory(run)).values())
        typer.echo(f"{run}: finished after step {step}; rollouts/ holds {size / 1e6:.1f} MB")
        typer.echo(f"{run}: {time_shares(read(RunDirectory(run).metrics_file))}")


app.command("eval")(evaluate)
app.command()(infer)
app.command()(serve)
app.command()(report)
app.command()(samples)
app.command()(mechanisms)
app.command()(watch)


@app.command()
def convert(
    run: Annotated[
        str, typer.Argument(metavar="RUN[@STEP]", help="A run directory or its recipe, or a folder of verl.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    adapter: Annotated[bool, typer.Option("--adapter", help="Of a LoRA run: the adapter alone, for peft.")] = False,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="verl", help="Read a checkpoint of verl's FSDP backend.")
    ] = None,
    lora_alpha: Annotated[
        float | None, typer.Option(help="With --from verl: alpha of its adapters, where the checkpoint has none.")
    ] = None,
    verify: Annotated[str | None, typer.Option(help="tensors or full; full by default where memory allows.")] = None,
) -> None:
    """Turn a checkpoint into a Hugging Face folder, verified by loading it again."""
    from dapo_cli.export.command import Conversion

    conversion = Conversion(run, out, dtype, adapter, from_, lora_alpha, verify)
    folder = conversion.run(note)
    typer.echo(f"{folder}: written and verified")
    typer.echo(f"next: dapo {conversion.following(folder)}")


@app.command()
def checkpoints(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    hashes: Annotated[bool, typer.Option("--hashes", help="Compare the content of every file too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """List the checkpoints of a run: step, size, score, complete or not."""
    from dataclasses import asdict

    from dapo_cli.run.checkpoint_list import checkpoint_table, list_checkpoints
    from dapo_cli.run.directory import RunDirectory
    from dapo_cli.run.disk import human_size

    listed = list_checkpoints(RunDirectory.open(Path(run)), check_hashes=hashes)
    compared = "sizes and hashes" if hashes else "sizes"
    total_bytes = sum(each.size_bytes for each in listed)
    if json:
        from json import dumps

        content = {"compared": compared, "total_bytes": total_bytes, "checkpoints": [asdict(each) for each in listed]}
        typer.echo(dumps(content, indent=2))
        return
    if not listed:
        typer.echo(f"{run}: no checkpoints yet; `dapo train` writes one every checkpoint.every steps and at the end")
        return
    from rich.console import Console

    Console().print(checkpoint_table(listed))
    total = human_size(total_bytes)
    metrics = sorted({each.metric[0] for each in listed if each.metric is not None})
    score = f"; score is {', '.join(metrics)}" if metrics else ""
    typer.echo(f"{run}: {len(listed)} checkpoints, {total}; {compared} compared{score}")
    if any(each.trouble is None for each in listed):
        typer.echo(f"next: dapo convert {shlex.quote(run)} --out DIR")


def main() -> None:
    """Run the command line; a user's mistake ends with one message and its exit code, never with a traceback."""
    from dapo_cli.errors import DapoError

    try:
        app()
    except DapoError as error:
        note(f"error: {error.message}")
        if error.hint:
            note(f"hint: {error.hint}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read the output has seen enough; flushing it again at exit would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        note(f"error: {place}{error.strerror or error}")
        sys.exit(1)

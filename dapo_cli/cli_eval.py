"""The command `dapo eval`: a run, a model, a served endpoint, a file of completions, or two evaluations compared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapo_cli.cli_shared import DEFAULT_RECIPE, SetOption, note, progress_bar, show_evaluation, show_notes

if TYPE_CHECKING:
    from dapo_cli.evaluation.result import EvaluationResult
    from dapo_cli.recipe.loading import LoadedRecipe


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `dapo eval`, as they were typed."""

    recipe: str | None
    run: str | None
    model: str | None
    endpoint: str | None
    completions: Path | None
    out: Path | None
    samples: int | None
    overrides: tuple[str, ...]

    def refuse_contradictions(self, *, all_steps: bool, two_benchmarks: bool) -> None:
        """Options that exclude or need each other.

        Raises:
            UsageError: two of them do.
        """
        from dapo_cli.errors import UsageError

        given = {
            "--run": self.run,
            "--model": self.model,
            "--endpoint": self.endpoint,
            "--completions": self.completions,
        }
        named = [option for option, value in given.items() if value is not None]
        if len(named) > 1 or (self.run is not None and self.recipe is not None):
            what = " and ".join(named if len(named) > 1 else ["RECIPE", "--run"])
            raise UsageError(f"{what} exclude each other", hint="dapo eval RECIPE --model PATH, or dapo eval --run RUN")
        if two_benchmarks:
            raise UsageError("--aime2024 and --benchmark exclude each other")
        if all_steps and self.run is None:
            raise UsageError("--all-steps needs --run RUN")
        if all_steps and self.out is not None:
            raise UsageError("--all-steps and --out exclude each other: each step has a folder of its own")


def evaluate(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help=f"The recipe to evaluate by; a run brings its own. Default {DEFAULT_RECIPE}."
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN[@STEP]", help="Evaluate a checkpoint of this run.")] = None,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="With --run: every checkpoint it has.")] = False,
    model: Annotated[str | None, typer.Option(help="Evaluate this model instead of the recipe's.")] = None,
    benchmark: Annotated[str | None, typer.Option(help="A card in evals/, instead of eval.benchmark.")] = None,
    aime2024: Annotated[bool, typer.Option("--aime2024", help="The same as --benchmark aime_2024.")] = False,
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="A local copy of the benchmark.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Responses per problem.")] = None,
    max_response_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response, if not the card's.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a served model that speaks OpenAI's API.")
    ] = None,
    served_model: Annotated[str | None, typer.Option(help="With --endpoint: the name it is served under.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="With --endpoint: requests under way.")] = 64,
    completions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score the completions in a jsonl, json, csv or parquet file.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=NAME", help="With --completions: where a file keeps what; repeatable."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="A B", help="Compare two evaluation folders, and do no more.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for samples.jsonl, report.json and report.html.")] = None,
    set_: SetOption = None,
) -> None:
    """Evaluate a run, a model, a served model or a file of completions, with confidence intervals."""
    if compare is not None:
        _compare(*compare)
        return
    overrides = (
        *(set_ or []),
        *_override("eval.benchmark", "aime_2024" if aime2024 else benchmark),
        *_override("eval.samples", samples),
        *_override("eval.max_response_tokens", max_response_tokens),
    )
    wanted = Wanted(recipe, run, model, endpoint, completions, out, samples, overrides)
    wanted.refuse_contradictions(all_steps=all_steps, two_benchmarks=aime2024 and benchmark is not None)
    if run is not None:
        _evaluate_run(wanted, source, all_steps)
    elif completions is not None:
        _evaluate_completions(wanted, source, column or [])
    elif endpoint is not None:
        _evaluate_endpoint(wanted, source, served_model, concurrency)
    else:
        _evaluate_model(wanted, source)


def _override(key: str, value: object) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def _load(reference: str | Path, wanted: Wanted, source: Path | None) -> LoadedRecipe:
    """The recipe with the options of the command, and the local copy of its benchmark."""
    from dapo_cli.recipe.loading import load_recipe

    loaded = load_recipe(reference, list(wanted.overrides))
    if source is None:
        return loaded
    evaluation = loaded.recipe.eval
    files = {**evaluation.files, Path(evaluation.benchmark).stem: str(source)}
    changed = evaluation.model_copy(update={"files": files})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"eval": changed}))


def _evaluate_run(wanted: Wanted, source: Path | None, all_steps: bool) -> None:
    from dapo_cli.evaluation.command import evaluate_run
    from dapo_cli.run.checkpoints import find_checkpoint, parse_run_reference, saved_steps
    from dapo_cli.run.directory import RunDirectory

    assert wanted.run is not None
    path, step = parse_run_reference(wanted.run)
    directory = RunDirectory.open(path)
    loaded = _load(directory.recipe_file, wanted, source)
    steps = sorted(saved_steps(directory)) if all_steps else [step]
    for number in steps:
        checkpoint = find_checkpoint(directory, number, note)
        with progress_bar() as progress:
            result, folder = evaluate_run(loaded, directory, checkpoint, wanted.out, note, progress)
        show_evaluation(directory, result)
        _finish(result, folder)
    if all_steps:
        from rich.console import Console

        from dapo_cli.evaluation.curve import write_curve

        Console().print(write_curve(directory))
    typer.echo(f"next: dapo convert {path}@{checkpoint.step} --out {path.name}-hf")


def _evaluate_model(wanted: Wanted, source: Path | None) -> None:
    from dapo_cli.evaluation.command import evaluate_model

    reference = wanted.recipe or DEFAULT_RECIPE
    loaded = _load(reference, wanted, source)
    show_notes(loaded.notes)
    with progress_bar() as progress:
        result, folder = evaluate_model(loaded, wanted.model, wanted.out, note, progress)
    _show(result, folder)
    typer.echo(f"next: dapo eval --compare {folder} OTHER compares it with another evaluation of the same problems")


def _evaluate_completions(wanted: Wanted, source: Path | None, columns: list[str]) -> None:
    from dapo_cli.errors import UsageError
    from dapo_cli.evaluation.rescoring import CompletionsFile, evaluate_completions

    for text in columns:
        if "=" not in text:
            raise UsageError(f"--column {text}: want KIND=NAME, such as response=output")
    given = {text.partition("=")[0]: text.partition("=")[2] for text in columns}
    loaded = _load(wanted.recipe or DEFAULT_RECIPE, _for_completions(wanted), source)
    assert wanted.completions is not None
    file = CompletionsFile(wanted.completions, given, wanted.samples)
    with progress_bar() as progress:
        result, folder = evaluate_completions(loaded, file, wanted.out, note, progress)
    _show(result, folder)


def _evaluate_endpoint(wanted: Wanted, source: Path | None, served_model: str | None, concurrency: int) -> None:
    from dapo_cli.evaluation.endpoint import Endpoint
    from dapo_cli.evaluation.endpoint_command import evaluate_endpoint

    loaded = _load(wanted.recipe or DEFAULT_RECIPE, wanted, source)
    show_notes(loaded.notes)
    assert wanted.endpoint is not None
    # A key on the command line would stand in every history.
    key = os.environ.get("OPENAI_API_KEY")
    server = Endpoint(wanted.endpoint, served_model, key, concurrency, note=note)
    with progress_bar() as progress:
        result, folder = evaluate_endpoint(loaded, server, wanted.out, note, progress)
    _show(result, folder)


def _for_completions(wanted: Wanted) -> Wanted:
    """Without a recipe and without a benchmark the file brings its own answers."""
    if wanted.recipe is not None or any(text.startswith("eval.benchmark=") for text in wanted.overrides):
        return wanted
    return replace(wanted, overrides=("eval.benchmark=heldout", "dataset.heldout_problems=1", *wanted.overrides))


def _show(result: EvaluationResult, folder: Path) -> None:
    from rich.console import Console

    from dapo_cli.evaluation.report import evaluation_table

    Console().print(evaluation_table(result))
    _finish(result, folder)


def _finish(result: EvaluationResult, folder: Path) -> None:
    from dapo_cli.evaluation.html_report import write_html
    from dapo_cli.evaluation.report import published_scores, verdict_lines

    for line in verdict_lines(result):
        typer.echo(line)
    write_html(folder, published_scores(result))
    typer.echo(f"{folder}: samples.jsonl, report.json and report.html")


def _compare(first: Path, second: Path) -> None:
    """Two finished evaluations of the same problems, side by side."""
    from rich.console import Console

    from dapo_cli.evaluation.evaluate import load_result
    from dapo_cli.evaluation.report import comparison_table, paired_line

    before, after = load_result(first), load_result(second)
    Console().print(comparison_table(before, after))
    typer.echo(paired_line(before, after) or "not the same problems: the two cannot be paired")

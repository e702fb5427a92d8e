"""`dapo prepare-data`: the preparation of a recipe's data with its own tokenizer and its benchmarks at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dapo_cli.dataset.card_text import stage_lines
from dapo_cli.dataset.data_card import DataCard
from dapo_cli.dataset.prepare import BenchmarkWords, PreparedData, Surroundings, prepare
from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.dataset.settings import resolve
from dapo_cli.dataset.survey import words_hash
from dapo_cli.errors import DapoError
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.benchmark_problems import load_problems
from dapo_cli.recipe.schema import Recipe
from dapo_cli.types import Problem
from dapo_cli.workload import MODEL_CACHE


def prepare_recipe(recipe: Recipe, source: str | None = None, out: Path | None = None) -> PreparedData:
    """`prepare` with the recipe's tokenizer and benchmarks; what of them cannot be had is said in the data card.

    Raises:
        UsageError: see `prepare`; or an unknown benchmark.
        VerificationError: see `prepare`.
    """
    for name in recipe.dataset.overlap_benchmarks:
        load_benchmark(name)
    return prepare(recipe, source, out, lambda: look_around(recipe))


def look_around(recipe: Recipe) -> Surroundings:
    """The recipe's tokenizer as a measure of prompts, and the words of every benchmark it is compared with."""
    benchmarks = {name: benchmark_words(recipe, name) for name in resolve(recipe).benchmarks}
    try:
        return Surroundings(prompt_measure(recipe), recipe.model.path, benchmarks)
    except DapoError as error:
        return Surroundings(None, f"the tokenizer of {recipe.model.path} cannot be loaded: {error}", benchmarks)


def benchmark_words(recipe: Recipe, name: str) -> BenchmarkWords:
    """The problems of a benchmark for comparison, or why they cannot be had.

    Raises:
        DapoError: `eval.files` names a file for it that is not the benchmark.
    """
    benchmark = load_benchmark(name)
    if benchmark.source is None:
        return BenchmarkWords(None, "it is the held-out part of this very data")
    try:
        found = load_problems(benchmark, recipe.eval.files, "{problem}")
    except DapoError as error:
        if name in recipe.eval.files:
            raise
        return BenchmarkWords(None, str(error))
    return BenchmarkWords(frozenset(words_hash(problem.text) for problem in found.problems), found.origin)


def prompt_measure(recipe: Recipe) -> Callable[[str], int]:
    """From a problem's text to the tokens of its prompt, rendered exactly as for training.

    Raises:
        UsageError: the tokenizer cannot be loaded.
    """
    from dapo_cli.rollout.prompts import PromptRenderer

    renderer = PromptRenderer(_tokenizer(recipe), recipe.prompt)

    def measure(text: str) -> int:
        message = {"role": "user", "content": apply_template(recipe.prompt.template, text)}
        return len(renderer.render(Problem("", text, (message,), "", "")).prompt_ids)

    return measure


def _tokenizer(recipe: Recipe) -> object:
    if recipe.model.path == "toy":
        from dapo_cli.toy.tokenizer import build_tokenizer

        return build_tokenizer()
    from dapo_cli.policy.model import load_tokenizer, resolve_model

    return load_tokenizer(resolve_model(recipe.model, MODEL_CACHE), recipe.model)


def summary(prepared: PreparedData) -> Iterator[str]:
    """What was done, line by line: counts at each stage, and whatever a user should look at."""
    card = prepared.card
    yield f"{prepared.folder}: {'is prepared already' if prepared.already_prepared else 'prepared'}"
    yield from (f"  {count:>9,} {stage}" for stage, count in stage_lines(card.counts))
    yield f"  {card.distinct_problems:>9,} distinct problems before anything was dropped"
    yield from (f"  note: {note}" for note in card.notes)
    yield from _to_look_at(card)
    yield f"  data card: {prepared.folder / 'data_card.md'}"


def _to_look_at(card: DataCard) -> Iterator[str]:
    if card.counts.carried_a_template:
        yield f"  {card.counts.carried_a_template:,} rows carried a prompt template, which was taken off"
    if card.not_integers:
        yield f"  {len(card.not_integers):,} ground truths are not integers, first: {card.not_integers[0]}"
    lengths = card.lengths
    if lengths.measured:
        what = "dropped" if card.counts.too_long_rows_dropped else "dapo train refuses: see prompt.long_prompts"
        over = f", {lengths.longer} problems over the limit of {lengths.limit} ({what})" if lengths.longer else ""
        yield f"  longest prompt: {lengths.longest} tokens{over}"
    else:
        yield f"  prompt lengths not measured: {lengths.tokenizer}"
    for overlap in card.overlaps:
        if not overlap.checked:
            yield f"  {overlap.benchmark}: not compared: {overlap.reason}"
        else:
            yield f"  {overlap.benchmark}: {overlap.asked} of its problems are in the data"
    yield from (f"  {finding.count:,} {finding.what}" for finding in card.findings)

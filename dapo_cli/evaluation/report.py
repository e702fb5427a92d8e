"""An evaluation for people and for scripts: tables of 80 columns, and the values of report.json."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from dapo_cli import __version__
from dapo_cli.evaluation import statistics
from dapo_cli.evaluation.benchmark import PublishedScore, benchmark_names, load_benchmark
from dapo_cli.evaluation.result import EvaluationResult, ProblemResult
from dapo_cli.recipe.schema import Reward

CONTAMINATED = "CONTAMINATED"
_CONTAMINATION = f"{CONTAMINATED}: evaluated problems are in the training data"


def evaluation_table(result: EvaluationResult) -> Table:
    """avg@n with both intervals, the rates and the mean length."""
    table = _table(result, result.settings.model)
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in _rows(result).items():
        table.add_row(name, value)
    if result.settings.contaminated:
        table.caption = _CONTAMINATION
    return table


def comparison_table(before: EvaluationResult, after: EvaluationResult) -> Table:
    """Two evaluations side by side, and the change of avg@n in points; says when they are not of the same problems."""
    table = _table(after, "before and after", before.settings.contaminated)
    for heading in ("measure", "before", "after", "change"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    left, right = _rows(before), _rows(after)
    changes = {f"avg@{after.settings.samples}": f"{100 * (after.avg_at_n - before.avg_at_n):+.1f} points"}
    for name in {**left, **right}:
        table.add_row(name, left.get(name, ""), right.get(name, ""), changes.get(name, "") if name in left else "")
    notes = [_CONTAMINATION] if before.settings.contaminated or after.settings.contaminated else []
    if [p.problem_id for p in before.problems] != [p.problem_id for p in after.problems]:
        notes.append("not the same problems")
    if before.settings.sampling != after.settings.sampling:
        notes.append("not the same sampling")
    table.caption = "; ".join(notes) or None
    return table


_PROBLEM_FIELDS = tuple(ProblemResult.__dataclass_fields__)
MAX_BOOTSTRAP_DRAWS = 50_000_000
"""verl's bootstrap draws 1000 times n samples of each problem; above this it is left out, which the report says."""


def published_scores(result: EvaluationResult) -> tuple[PublishedScore, ...]:
    """What others scored on the very problems of `result`; none where only some of them were asked."""
    name = result.settings.benchmark
    if name not in benchmark_names():
        return ()
    card = load_benchmark(name)
    whole = card.source is not None and card.source.problems == len(result.problems)
    return tuple(card.published) if whole else ()


def verdict_lines(result: EvaluationResult) -> list[str]:
    """What the score says, in one line; and a line for each published score of the same problems."""
    counts, n, limit = result.num_correct, result.settings.samples, result.settings.sampling.max_response_tokens
    published = published_scores(result)
    if not published:
        return [statistics.verdict_line(counts, n)]
    others = [statistics.Published(each.score / 100, each.samples, each.name) for each in published]
    lines = [statistics.verdict_line(counts, n, other) for other in others]
    allowed = load_benchmark(result.settings.benchmark).sampling.max_response_tokens
    if limit and allowed and limit < allowed:
        lines.append(f"responses were cut at {limit} tokens and the published ones at {allowed}: not comparable")
    return lines


def _by_length(result: EvaluationResult) -> list[statistics.LengthBin]:
    tokens = [count for problem in result.problems for count in problem.response_tokens]
    return statistics.accuracy_by_length(tokens, [right for row in result.right for right in row])


def paired_line(before: EvaluationResult, after: EvaluationResult) -> str | None:
    """The paired comparison of two evaluations; None where they are not of the same problems."""
    ours = {problem.problem_id: problem.num_correct for problem in after.problems}
    if set(ours) != {problem.problem_id for problem in before.problems}:
        return None
    aligned = np.array([ours[problem.problem_id] for problem in before.problems], dtype=np.int64)
    pair = statistics.paired_difference(before.num_correct, aligned, before.settings.samples, after.settings.samples)
    return statistics.comparison_line(pair, before.settings.model, after.settings.model)


def _votes(result: EvaluationResult) -> dict[str, Any]:
    """maj@k as an expectation, verl's bootstrap beside it, and the vote over all samples in their order."""
    n = result.settings.samples
    powers = [k for k in (2**exponent for exponent in range(n.bit_length())) if k < n]
    majorities = {str(k): result.maj_at_k(k) for k in [*powers, n]}
    in_order = statistics.majority_in_order(result.predictions, result.right)
    small = 1000 * n * len(result.problems) <= MAX_BOOTSTRAP_DRAWS
    bootstrap = statistics.bootstrap_at_k(result.predictions, result.right, n) if small and n > 1 else None
    return {
        "maj_at_k": {k: majority.score for k, majority in majorities.items()},
        "maj_simulated_problems": {k: m.simulated_problems for k, m in majorities.items() if m.simulated_problems},
        "maj_in_order": in_order.score,
        "maj_ties": in_order.ties,
        "verl_bootstrap": f"left out: more than {MAX_BOOTSTRAP_DRAWS} draws"
        if not small
        else None
        if bootstrap is None
        else {f"{name}@{n}": value for name, value in bootstrap._asdict().items()},
    }


def report_values(result: EvaluationResult, reward: Reward) -> dict[str, Any]:
    """The values of report.json: rates in [0, 1], lengths in tokens.

    There are no times among them: equal evaluations give equal files.
    """
    n, counts = result.settings.samples, result.num_correct
    over_problems = statistics.stderr_over_problems(counts, n)
    powers = [k for k in (2**exponent for exponent in range(n.bit_length())) if k < n]
    return {
        **({"warning": _CONTAMINATION} if result.settings.contaminated else {}),
        "settings": asdict(result.settings),
        "reward": {"scorer": reward.scorer, "response_prefix": reward.response_prefix},
        "dapo_version": __version__,
        "num_problems": len(result.problems),
        f"avg@{n}": result.avg_at_n,
        "interval_over_samples": list(result.interval_over_samples),
        "interval_over_problems": list(result.interval_over_problems),
        "stderr_over_samples": statistics.stderr_over_samples(counts, n),
        "stderr_over_problems": None if math.isnan(over_problems) else over_problems,
        "pass_at_k": {str(k): result.pass_at_k(k) for k in [*powers, n]},
        **_votes(result),
        "verdict": verdict_lines(result),
        "accuracy_by_length": [each._asdict() for each in _by_length(result)],
        "truncated": result.truncated_rate,
        "no_answer": result.no_answer_rate,
        "verifier_error": result.verifier_error_rate,
        "response_length_mean": result.response_length_mean,
        "problems": [{name: getattr(problem, name) for name in _PROBLEM_FIELDS} for problem in result.problems],
    }


def _table(result: EvaluationResult, subject: str, contaminated: bool = False) -> Table:
    mark = f" {CONTAMINATED}" if contaminated or result.settings.contaminated else ""
    return Table(title=f"{result.settings.benchmark}{mark}: {subject}")


def _rows(result: EvaluationResult) -> dict[str, str]:
    n = result.settings.samples
    return {
        f"avg@{n}": f"{100 * result.avg_at_n:.1f}%",
        "95%, on these problems": interval_text(result.interval_over_samples),
        "95%, on problems like these": interval_text(result.interval_over_problems),
        f"pass@{n}": f"{100 * result.pass_at_k(n):.1f}%",
        **({f"maj@{n}": f"{100 * result.maj_at_k(n).score:.1f}%"} if n > 1 else {}),
        "problems x samples": f"{len(result.problems)} x {n}",
        "truncated": f"{100 * result.truncated_rate:.1f}%",
        "no answer": f"{100 * result.no_answer_rate:.1f}%",
        "verifier errors": f"{100 * result.verifier_error_rate:.1f}%",
        "mean response tokens": "-" if result.response_length_mean is None else f"{result.response_length_mean:.1f}",
    }


def interval_text(interval: statistics.Interval) -> str:
    """An interval in percent."""
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}%"

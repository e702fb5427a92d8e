"""The evaluations of a run in the order of its steps, filled in afterwards by `dapo eval --run RUN --all-steps`."""

from __future__ import annotations

import json

from rich.table import Table

from dapo_cli.evaluation.evaluate import load_result
from dapo_cli.evaluation.report import interval_text
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import write_atomic

CURVE = "curve.jsonl"


def curve(run: RunDirectory) -> list[tuple[int, EvaluationResult]]:
    """Every finished evaluation of the run's checkpoints, by step; several of a step by benchmark and samples."""
    folders = [path.parent for path in run.evals.glob(f"*/{REPORT}")]
    found = [(result.settings.model.rpartition("@")[2], result) for result in map(load_result, folders)]
    steps = [(int(step), result) for step, result in found if step.isdigit()]
    return sorted(steps, key=lambda each: (each[0], each[1].settings.benchmark, each[1].settings.samples))


def write_curve(run: RunDirectory) -> Table:
    """evals/curve.jsonl, a line per evaluation with its step and metrics; returns the same as a table."""
    points = curve(run)
    lines = [json.dumps({"step": step, "samples": r.settings.samples, **r.to_metrics()}) for step, r in points]
    write_atomic(run.evals / CURVE, "".join(f"{line}\n" for line in lines))
    table = Table(title=f"{run.evals / CURVE}")
    for heading in ("step", "benchmark", "score", "95%, on these problems"):
        table.add_column(heading, justify="right")
    for step, result in points:
        n = result.settings.samples
        score = f"avg@{n} {100 * result.avg_at_n:.1f}%"
        table.add_row(str(step), result.settings.benchmark, score, interval_text(result.interval_over_samples))
    return table

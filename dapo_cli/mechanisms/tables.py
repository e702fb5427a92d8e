"""The bench's verdicts as JSON, as Markdown, as a page, and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.table import Table

from dapo_cli.mechanisms.verdicts import SIGNIFICANT, Comparison, Verdict
from dapo_cli.run.files import write_atomic
from dapo_cli.run.manifest import versions
from dapo_cli.run.view import duration

_HEADERS = ("technique", "metric", "baseline", "treatment", "effect (95%)", "t", "Holm p", "pairs", "verdict")


def write_results(verdicts: Sequence[Verdict], out: Path) -> list[Path]:
    """Write results.json, results.md and results.html into `out`; returns their paths."""
    paths = [out / name for name in ("results.json", "results.md", "results.html")]
    for path, text in zip(paths, (as_json(verdicts), as_markdown(verdicts), as_page(verdicts)), strict=True):
        write_atomic(path, text)
    return paths


def as_json(verdicts: Sequence[Verdict]) -> str:
    """Everything that was compared."""
    content = {
        "versions": versions(),
        "mechanisms": [
            {
                "name": verdict.definition.name,
                "technique": verdict.definition.mechanism.technique,
                "prediction": verdict.definition.mechanism.prediction.strip(),
                "verdict": verdict.outcome,
                "holm_p": verdict.holm_p,
                "seconds": verdict.seconds,
                "comparisons": [asdict(each) for each in verdict.comparisons],
                "control": asdict(verdict.control),
            }
            for verdict in verdicts
        ],
    }
    # A pair without any spread has an infinite t, which JSON does not have.
    return json.dumps(_finite(content), indent=1) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "infinite" if value > 0 else "-infinite"
    return value


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The verdicts, then every comparison, then the control."""
    lines = [f"| {' | '.join(_HEADERS)} |", f"| {' | '.join('---' for _ in _HEADERS)} |"]
    lines += [f"| {' | '.join(row)} |" for row in verdict_rows(verdicts)]
    lines += ["", "| technique | metric | at equal | predicted | baseline | treatment | effect (95%) | t | p | pairs |"]
    lines.append(f"|{' --- |' * 10}")
    for verdict in verdicts:
        lines += [
            f"| {verdict.definition.mechanism.technique} | {' | '.join(_cells(each))} |" for each in verdict.comparisons
        ]
    lines += ["", "| technique | A/A: effect (95%) | t | p |", "| --- | --- | --- | --- |"]
    for verdict in verdicts:
        control = verdict.control
        name = verdict.definition.mechanism.technique
        lines.append(f"| {name} | {_effect(control)} | {control.t:.1f} | {_p(control.p)} |")
    return "\n".join(lines) + "\n"


def verdict_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """A row for each mechanism: the comparison that its verdict rests on."""
    rows: list[tuple[str, ...]] = []
    for verdict in verdicts:
        first = verdict.comparisons[0]
        result = first.result
        never = f"; {first.never_reached} runs never" if first.never_reached else ""
        rows.append(
            (
                verdict.definition.mechanism.technique,
                f"{first.metric}{never}",
                f"{result.baseline:.3g}",
                f"{result.treatment:.3g}",
                _effect(result),
                f"{result.t:.1f}",
                _p(verdict.holm_p),
                f"{result.agreeing} of {result.pairs}",
                verdict.outcome,
            )
        )
    return rows


def _cells(comparison: Comparison) -> list[str]:
    result = comparison.result
    sign: str = comparison.predicted or "-"
    if comparison.predicted is not None:
        seen = result.p < SIGNIFICANT
        sign += ", seen" if seen and comparison.as_predicted else ", THE OPPOSITE SEEN" if seen else ", not seen"
    numbers = [f"{result.baseline:.3g}", f"{result.treatment:.3g}", _effect(result), f"{result.t:.1f}", _p(result.p)]
    return [comparison.metric, comparison.axis, sign, *numbers, f"{result.agreeing} of {result.pairs}"]


def _effect(result: Any) -> str:
    return f"{result.effect:+.3g} ({result.low:+.3g} to {result.high:+.3g})"


def _p(p: float) -> str:
    return "below 0.0001" if p < 0.0001 else f"{p:.2g}"


def terminal_table(verdicts: Sequence[Verdict]) -> Table:
    """The verdicts for a terminal of 80 columns."""
    table = Table(title="Do the techniques do what was predicted?", show_lines=True)
    for header in ("technique", "effect (95%)", "Holm p", "A/A p", "verdict"):
        table.add_column(header, overflow="fold")
    for verdict, row in zip(verdicts, verdict_rows(verdicts), strict=True):
        table.add_row(f"{row[0]}\n[dim]{row[1]}[/]", row[4], row[6], _p(verdict.control.p), row[8])
    return table


def as_page(verdicts: Sequence[Verdict]) -> str:
    """One self-contained page without script: predictions, verdicts, and every comparison."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (folder.parent / "report" / "report.css").read_text(encoding="utf-8")
    shown = [
        {
            "verdict": verdict,
            "row": row,
            "cells": [_cells(each) for each in verdict.comparisons],
            "bar": _bar(verdict),
            "control": f"{_effect(verdict.control)}, p {_p(verdict.control.p)}",
            "took": duration(verdict.seconds),
        }
        for verdict, row in zip(verdicts, verdict_rows(verdicts), strict=True)
    ]
    return environment.get_template("results.html.jinja").render(shown=shown, style=style, versions=versions())


def _bar(verdict: Verdict) -> dict[str, float]:
    """The interval of the effect, and that of the control, on a scale from -1 to 1 around no effect."""
    result, control = verdict.comparisons[0].result, verdict.control
    largest = max(abs(each) for each in (result.low, result.high, control.low, control.high)) or 1.0
    scaled = {"low": result.low, "effect": result.effect, "high": result.high, "a": control.low, "b": control.high}
    return {name: 150 + 140 * value / largest for name, value in scaled.items()}

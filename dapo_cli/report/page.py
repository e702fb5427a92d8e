"""One self-contained HTML page about training runs: opens offline and draws its curves itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dapo_cli.evaluation.html_text import shorten
from dapo_cli.recipe.keys import leaf_values
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.schema import Recipe
from dapo_cli.report.findings import Finding, find
from dapo_cli.report.paper_ranges import BANDS
from dapo_cli.report.reference import load_reference
from dapo_cli.report.rollout_choice import LABELS, ChosenRollout, read_rollouts
from dapo_cli.report.series import AXES, CHARTS, curves
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note, write_atomic
from dapo_cli.run.metrics import read, time_shares

REFERENCE_RECIPE = "dapo_qwen32b"
ROLLOUTS, TEXT_BYTES = 300, 8_000
"""Rollouts on the page over all runs, and room for one response."""
_FOLDER = Path(__file__).parent
_PHASES = ("generate", "logprobs", "update", "sync", "eval", "checkpoint", "preflight")


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run as the page shows it."""

    name: str
    steps: int
    findings: list[Finding]
    data: dict[str, Any]
    """What the page's script reads."""


def write_report(runs: Sequence[Path], out: Path, reference: Path | None, note: Note) -> list[ReportedRun]:
    """Write the page about `runs` to `out`; `reference` is an exported wandb history that lies under the curves.

    Raises:
        UsageError: a folder is no run, or the reference cannot be read.
        DapoError: a run's files are damaged.
        OSError: the page cannot be written; one that was there is then as it was.
    """
    names = unique_names(runs)
    reported = [
        report_run(RunDirectory.open(path), name, ROLLOUTS // len(runs)) for path, name in zip(runs, names, strict=True)
    ]
    data: dict[str, Any] = {
        "axes": AXES,
        "charts": [asdict(chart) for chart in CHARTS],
        "bands": [asdict(band) for band in BANDS],
        "runs": [run.data for run in reported],
        "reference": None,
        "labels": LABELS,
    }
    if reference is not None:
        rows, unknown = load_reference(reference)
        # verl measures the groups that are trained on, and nothing else: they stand in the charts of all.
        rows = [{key.removesuffix("_kept"): value for key, value in row.items()} | row for row in rows]
        keys = [key for chart in CHARTS for key in chart.keys]
        data["reference"] = {"name": reference.name, **curves(rows, [*keys, *_score_keys(rows)])}
        note(f"{reference}: {len(rows)} rows; not ours and left out: {', '.join(unknown) or 'none'}")
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.jinja").render(
        runs=reported,
        data=_script_json(data),
        script=(_FOLDER / "report.js").read_text(encoding="utf-8"),
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, page)
    return reported


def report_run(run: RunDirectory, name: str, rollouts: int) -> ReportedRun:
    """Everything that is shown of one run.

    Raises:
        DapoError: its files are damaged.
    """
    rows = read(run.metrics_file)
    recipe = load_recipe(run.recipe_file).recipe
    manifest = run.manifest()
    reading = read_rollouts(run, rollouts)
    keys = [key for chart in CHARTS for key in chart.keys]
    data = {
        "name": name,
        **curves([row for row in rows if row["step"] > 0], keys),
        "evaluations": evaluations(rows),
        "reflections": [
            [point.step, point.reflecting / point.responses, point.interval.low, point.interval.high, point.responses]
            for point in reading.reflections
        ],
        "budget": budget(rows),
        "differences": differences(recipe),
        "facts": facts(manifest, recipe),
        "time": time_shares(rows),
        "rollouts": [shown(chosen) for chosen in reading.chosen],
        "stored_rollouts": reading.rollouts,
    }
    return ReportedRun(name, int(rows[-1]["step"]) if rows else 0, find(rows, recipe), data)


def unique_names(runs: Sequence[Path]) -> list[str]:
    """The last part of each path, with as much before it as tells them apart.

    >>> unique_names([Path("a/demo"), Path("b/demo")]), unique_names([Path("runs/demo")])
    (['a/demo', 'b/demo'], ['demo'])
    """
    resolved = [path.resolve().parts for path in runs]
    longest = max(len(parts) for parts in resolved)
    for count in range(1, longest + 1):
        names = ["/".join(parts[-count:]) for parts in resolved]
        if len(set(names)) == len(names):
            return names
    return [f"{parts[-1]} ({number})" for number, parts in enumerate(resolved, 1)]


def evaluations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every avg@n there is, with both 95% intervals where they were measured, by benchmark and n."""
    found = []
    for key in _score_keys(rows):
        points = [
            {
                "step": row["step"],
                "value": row[key],
                "samples": [row.get(f"{key}_over_samples_low"), row.get(f"{key}_over_samples_high")],
                "problems": [row.get(f"{key}_over_problems_low"), row.get(f"{key}_over_problems_high")],
            }
            for row in rows
            if row.get(key) is not None
        ]
        found.append({"key": key, "points": points})
    return found


def _score_keys(rows: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("eval/") and "/avg@" in key)
    return [key for key in keys if "_over_" not in key]


def budget(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where time and tokens went: seconds of each phase, and tokens drawn and trained on."""
    total = sum(row.get("time/step") or 0.0 for row in rows)
    phases = {name: sum(row.get(f"time/{name}") or 0.0 for row in rows) for name in _PHASES}
    drawn = sum(row.get("rollout/response_tokens") or 0 for row in rows)
    kept = sum(row.get("rollout/response_tokens_kept") or 0 for row in rows)
    return {
        "seconds": total,
        "phases": {k: v for k, v in phases.items() if v},
        "drawn_tokens": drawn,
        "kept_tokens": kept,
    }


def differences(recipe: Recipe) -> list[tuple[str, str, str]]:
    """(key, here, there) of every value that differs from the packaged 32B recipe."""
    here = leaf_values(recipe)
    there = leaf_values(load_recipe(REFERENCE_RECIPE).recipe)
    return [
        (key, _word(here.get(key)), _word(there.get(key)))
        for key in dict.fromkeys([*here, *there])
        if here.get(key) != there.get(key)
    ]


def facts(manifest: dict[str, Any], recipe: Recipe) -> list[tuple[str, str]]:
    """What the run was made from."""
    rows = [
        ("model", manifest["model"]["path"]),
        ("data", ", ".join(f"{name} {sha256[:12]}" for name, sha256 in manifest["data"].items())),
        ("backend", f"{recipe.backend.kind}, engine {recipe.rollout.engine}, {recipe.model.dtype}"),
        ("started", manifest.get("created", "-")),
        ("versions", ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items())),
        ("commit", manifest.get("commit") or "-"),
    ]
    if manifest.get("forked_from"):
        rows.append(("forked from", manifest["forked_from"]))
    if manifest.get("contaminated"):
        rows.append(("CONTAMINATED", "evaluated problems are in the training data: the scores say little"))
    return [(name, str(value)) for name, value in rows]


def shown(chosen: ChosenRollout) -> dict[str, Any]:
    """A rollout with the middle of long texts left out."""
    row = chosen.row
    prompt, response = shorten(row["prompt"], TEXT_BYTES // 2), shorten(row["response"], TEXT_BYTES)
    return {
        "step": chosen.step,
        "labels": chosen.labels,
        "problem": row["problem_id"],
        "sample": row["sample"],
        "prompt": [prompt.head, prompt.omitted_characters, prompt.tail],
        "response": [response.head, response.omitted_characters, response.tail],
        **{key: row[key] for key in ("ground_truth", "prediction", "outcome", "verifier_error", "kept")},
        **{key: row[key] for key in ("score", "overlong_penalty", "reward", "tokens", "finish_reason")},
    }


def _word(value: Any) -> str:
    return "-" if value is None else str(value)


def _script_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

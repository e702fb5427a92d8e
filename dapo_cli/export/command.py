"""`dapo convert`: a checkpoint of a run as a verified Hugging Face folder that says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from dapo_cli.evaluation.evaluate import load_result
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.export.huggingface import Dtype
from dapo_cli.export.policy_folder import convert_checkpoint
from dapo_cli.run.checkpoints import find_checkpoint, parse_run_reference
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note


def convert_run(reference: str, out: Path, dtype: str, note: Note) -> Path:
    """Export the checkpoint `RUN[@STEP]` to `out`; returns the folder.

    Raises:
        UsageError: no such run or checkpoint, or `out` is in use.
        VerificationError: what was written is not the model that was trained.
    """
    path, step = parse_run_reference(reference)
    run = RunDirectory.open(path)
    checkpoint = find_checkpoint(run, step, note)
    note(f"converting {checkpoint.path}")
    return convert_checkpoint(run.path, checkpoint.path, out, cast(Dtype, dtype), provenance(run, checkpoint.step))


def in_one_line(result: EvaluationResult) -> str:
    """A result as a model card states it: never a bare percentage."""
    sampling, interval = result.settings.sampling, result.interval_over_samples
    return (
        f"avg@{result.settings.samples} {100 * result.avg_at_n:.1f}% (95% {100 * interval.low:.1f} to "
        f"{100 * interval.high:.1f}% on these {len(result.problems)} problems; temperature {sampling.temperature}, "
        f"top_p {sampling.top_p})"
    )


def provenance(run: RunDirectory, step: int) -> dict[str, Any]:
    """What the model card says of the weights: base model, recipe, step, data, and the evaluations of this step."""
    manifest = run.manifest()
    evaluations = {}
    for report in sorted(run.evals.glob(f"*/{REPORT}")):
        values = json.loads(report.read_text(encoding="utf-8"))
        if str(values["settings"]["model"]).rpartition("@")[2] == str(step):
            evaluations[report.parent.name] = in_one_line(load_result(report.parent))
    return {
        "base_model": manifest["model"]["path"],
        "run": run.path.name,
        "step": step,
        "data": ", ".join(f"{name} {sha256[:12]}" for name, sha256 in manifest["data"].items()),
        "contaminated": manifest["contaminated"],
        "evaluations": evaluations,
    }

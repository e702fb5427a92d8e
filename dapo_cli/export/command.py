"""`dapo convert`: a checkpoint as a verified Hugging Face folder that says where it comes from."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.evaluate import load_result
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.evaluation.samples import REPORT
from dapo_cli.export.adapter import export_adapter
from dapo_cli.export.folder import Dtype, refuse_dtype
from dapo_cli.export.model_card import TRAINED_NOTE
from dapo_cli.export.streamed_folder import Source, Verify, export_streamed, refuse_verify
from dapo_cli.export.trained_weights import load_adapted, policy_tensors
from dapo_cli.export.verl import convert_verl
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.recipe.packaged import packaged_names
from dapo_cli.recipe.schema import Lora
from dapo_cli.run.checkpoints import Checkpoint, find_checkpoint, parse_run_reference
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was asked for on the command line."""

    reference: str
    """RUN[@STEP] or a recipe, or a folder of verl."""
    out: Path
    dtype: str
    adapter: bool = False
    foreign: str | None = None
    """Whose checkpoint it is, None for one of ours."""
    lora_alpha: float | None = None
    verify: str | None = None

    def run(self, note: Note) -> Path:
        """Do it; returns the folder.

        Raises:
            UsageError: options that do not go together, or what `convert_run` and `convert_verl` refuse.
            VerificationError: what was written is not the model that was trained.
        """
        if self.foreign is None:
            if self.lora_alpha is not None:
                raise UsageError("--lora-alpha is for --from verl: a run's recipe says the alpha of its adapters")
            if self.adapter:
                if self.verify is not None:
                    raise UsageError("--verify is for whole models: an adapter is always loaded and compared")
                return convert_adapter(self.run_reference, self.out, self.dtype, note)
            return convert_run(self.run_reference, self.out, self.dtype, note, verify=self.verify)
        if self.foreign != "verl":
            raise UsageError(f"--from: must be verl, got {self.foreign!r}")
        if self.adapter:
            raise UsageError("--adapter is for runs of ours: adapters of verl are added to their weights")
        path = Path(self.reference)
        return convert_verl(path, self.out, self.dtype, note, lora_alpha=self.lora_alpha, verify=self.verify)

    @property
    def run_reference(self) -> str:
        """RUN[@STEP]; of a recipe its default run directory."""
        known = self.reference.endswith((".yaml", ".yml")) or self.reference in packaged_names()
        if not known or Path(self.reference).is_dir():
            return self.reference
        return str(Path("runs") / load_recipe(self.reference).name)

    def following(self, folder: Path) -> str:
        """Arguments of the command that comes next."""
        if self.foreign is not None:
            return f"eval RECIPE --model {shlex.quote(str(folder))}"
        if self.adapter:
            return f"eval --run {shlex.quote(self.run_reference)}"
        recipe = RunDirectory(parse_run_reference(self.run_reference)[0]).recipe_file
        return f"eval {shlex.quote(str(recipe))} --model {shlex.quote(str(folder))}"


def convert_run(reference: str, out: Path, dtype: str, note: Note, *, verify: str | None = None) -> Path:
    """Export the checkpoint `RUN[@STEP]` to `out`, one tensor at a time; returns the folder.

    A LoRA run becomes a whole model with the adapters added to its weights.

    Raises:
        DapoError: a file is missing or damaged.
        UsageError: no such run or checkpoint, `out` is in use, or a bad argument.
        VerificationError: what was written is not the model that was trained.
    """
    refuse_dtype(dtype)
    refuse_verify(verify)
    run, checkpoint = _find(reference, note)
    description = run.path / "model"
    if not (description / "config.json").is_file():
        raise DapoError(f"{description / 'config.json'}: no such file", hint="Is this the folder of a run?")
    source = Source(
        policy_tensors(run, checkpoint.path),
        description,
        provenance(run, checkpoint.step),
        TRAINED_NOTE,
        run.recipe_file,
    )
    return export_streamed(source, out, cast(Dtype, dtype), cast("Verify | None", verify), note)


def convert_adapter(reference: str, out: Path, dtype: str, note: Note) -> Path:
    """Export the adapters of the checkpoint `RUN[@STEP]` of a LoRA run for peft; returns the folder.

    Raises:
        UsageError: no such run or checkpoint, no adapters in it, or `out` is in use.
        VerificationError: what was written is not what was trained.
    """
    run, checkpoint = _find(reference, note)
    adapted = load_adapted(run, checkpoint.path)
    return export_adapter(adapted, out, cast(Dtype, dtype), provenance(run, checkpoint.step))


def _find(reference: str, note: Note) -> tuple[RunDirectory, Checkpoint]:
    path, step = parse_run_reference(reference)
    run = RunDirectory.open(path)
    checkpoint = find_checkpoint(run, step, note)
    note(f"converting {checkpoint.path}")
    return run, checkpoint


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
    lora = load_recipe(run.recipe_file).recipe.model.lora
    evaluations = {}
    for report in sorted(run.evals.glob(f"*/{REPORT}")):
        values = json.loads(report.read_text(encoding="utf-8"))
        if str(values["settings"]["model"]).rpartition("@")[2] == str(step):
            evaluations[report.parent.name] = in_one_line(load_result(report.parent))
    return {
        "base_model": manifest["model"]["path"],
        "trained": "all weights" if lora is None else f"LoRA of {_lora_in_words(lora)}",
        "run": run.path.name,
        "step": step,
        "data": ", ".join(f"{name} {sha256[:12]}" for name, sha256 in manifest["data"].items()),
        "contaminated": manifest["contaminated"],
        "evaluations": evaluations,
    }


def _lora_in_words(lora: Lora) -> str:
    return f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}"

"""`dapo convert --from verl`: a checkpoint of verl's FSDP backend as a verified Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from dapo_cli.errors import UsageError
from dapo_cli.export.folder import Dtype, refuse_dtype
from dapo_cli.export.streamed_folder import Source, Verify, export_streamed, refuse_verify
from dapo_cli.export.verl_files import find_verl_checkpoint
from dapo_cli.run.files import Note

_ORIGIN = "Converted from a checkpoint of verl by the `dapo` command."


def convert_verl(
    path: Path, out: Path, dtype: str, note: Note, *, lora_alpha: float | None = None, verify: str | None = None
) -> Path:
    """Export the verl checkpoint in `path` to `out`; returns the folder.

    `path` is a run with its latest step, a global_step_N, or the folder with the files of the ranks. Adapters are
    added to their weights; `lora_alpha` says their alpha where the checkpoint does not.

    Raises:
        DapoError: a file is missing or damaged.
        UsageError: a layout that is not read, a file that is not data alone, an alpha that nobody says, a bad argument.
        VerificationError: the tensors are not those of the model, or what was written is not what was read.
    """
    refuse_dtype(dtype)
    refuse_verify(verify)
    checkpoint = find_verl_checkpoint(path)
    ranks = f"{checkpoint.ranks} rank{'s' * (checkpoint.ranks > 1)}"
    note(f"converting {checkpoint.folder}: {ranks}")
    from dapo_cli.export.verl_lora import is_lora, merge_lora
    from dapo_cli.export.verl_tensors import verl_tensors

    tensors = verl_tensors(checkpoint, note)
    provenance: dict[str, Any] = {"source": f"verl, {ranks}", "step": checkpoint.step}
    if is_lora(tensors):
        tensors, provenance["lora"] = merge_lora(tensors, checkpoint.folder, lora_alpha)
        note(f"adapters added: {provenance['lora']}")
    elif lora_alpha is not None:
        raise UsageError(f"--lora-alpha: there are no adapters in {checkpoint.folder}")
    source = Source(tensors, checkpoint.description, provenance, _ORIGIN)
    return export_streamed(source, out, cast(Dtype, dtype), cast("Verify | None", verify), note)

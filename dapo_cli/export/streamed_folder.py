"""Export tensors as a Hugging Face folder one at a time, believed only after each was read back and found equal."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from dapo_cli.errors import UsageError, VerificationError
from dapo_cli.export import vllm_check
from dapo_cli.export.comparison import (
    comparable_generation_config,
    logprob_difference,
    probe_logprobs,
    refuse_differences,
    tokenizer_differences,
)
from dapo_cli.export.folder import Dtype, folder_in_the_making, made_by, refuse_dtype
from dapo_cli.export.host_memory import available_bytes
from dapo_cli.export.model_card import model_card
from dapo_cli.run.files import Note

if TYPE_CHECKING:
    import torch

    from dapo_cli.export.description import Described
    from dapo_cli.export.lazy_tensors import LazyTensor

Verify = Literal["tensors", "full"]
MANIFEST = "dapo_manifest.json"
RECIPE = "dapo_recipe.yaml"
MAX_FILE_BYTES = 5 * 10**9
# A loaded model, what reading it takes for a moment, and room for the log-probs of the probe.
_FULL_MEMORY_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported."""

    tensors: Mapping[str, LazyTensor]
    description: Path
    """Folder with config and tokenizer."""
    provenance: Mapping[str, Any]
    origin: str
    """A sentence for the model card."""
    recipe: Path | None = None
    """Goes into the folder too."""


def refuse_verify(verify: str | None) -> None:
    """Pass for a kind of verification there is.

    Raises:
        UsageError: there is no such kind.
    """
    if verify is not None and verify not in get_args(Verify):
        raise UsageError(f"--verify: must be one of {', '.join(get_args(Verify))}, got {verify!r}")


def export_streamed(source: Source, destination: Path, dtype: Dtype, verify: Verify | None, note: Note) -> Path:
    """Write the tensors in `dtype` with config, tokenizer, generation config, model card and manifest.

    The folder is written beside its destination. Then every tensor is read back and compared with its source, names,
    shapes and the tied head are those of the model that transformers makes of the config, and with `verify` full the
    folder is loaded and its log-probs compared; only then is it renamed. None means full where memory allows.

    Raises:
        DapoError: config or tokenizer is missing.
        UsageError: `destination` exists and is not an empty folder, or an unknown dtype or model.
        VerificationError: the tensors are not those of the model, or what was written is not what was read.
    """
    import torch

    from dapo_cli.export import safetensors_files
    from dapo_cli.export.description import Described
    from dapo_cli.export.lazy_tensors import cast_tensors, load_differences, tied_once
    from dapo_cli.policy.model import quiet_transformers

    destination = destination.resolve()
    quiet_transformers()
    refuse_dtype(dtype)
    with folder_in_the_making(destination) as partial:
        described = Described.read(source.description)
        once = tied_once(source.tensors, described.config, str(source.description.parent))
        tensors = cast_tensors(once, getattr(torch, dtype))
        _refuse_other_model(load_differences(tensors, described.config), source)
        mode = verify or _affordable(tensors, note)
        safetensors_files.write_safetensors(tensors, partial, MAX_FILE_BYTES, note)
        described.write(partial, dtype)
        if source.recipe is not None:
            shutil.copyfile(source.recipe, partial / RECIPE)
        card = model_card(destination.name, {**source.provenance, **made_by(dtype)}, origin=source.origin)
        (partial / "README.md").write_text(card, "utf-8")
        note(f"verifying {len(tensors)} tensors ({mode})")
        refuse_differences(destination, _differences(tensors, described, partial))
        verification: dict[str, Any] = {"mode": mode, "tensors": len(tensors), "equal": True}
        if mode == "full":
            verification |= _compare_loaded(tensors, described.config, partial, destination, note)
        _write_manifest(partial, source.provenance, dtype, verification)
    return destination


def _refuse_other_model(problems: list[str], source: Source) -> None:
    if problems:
        more = [f"  and {len(problems) - 20} more"] if len(problems) > 20 else []
        lines = "\n".join([*(f"  {problem}" for problem in problems[:20]), *more])
        config = source.description / "config.json"
        raise VerificationError(
            f"{config.parents[1]}: not the weights of the model in {config}\n{lines}", _names_hint(problems)
        )


def _names_hint(problems: list[str]) -> str | None:
    """Without accelerate the names of experts are compared as they are stored, not as transformers loads them."""
    if importlib.util.find_spec("accelerate") is None and any(".experts." in problem for problem in problems):
        return "pip install accelerate, with which experts that are stored one by one are recognised"
    return None


def _affordable(tensors: Mapping[str, LazyTensor], note: Note) -> Verify:
    needed = _FULL_MEMORY_FACTOR * sum(each.size_bytes for each in tensors.values())
    available = available_bytes()
    if available is None or needed <= available:
        return "full"
    note(
        f"a full verification takes {needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free: every "
        "tensor is compared, log-probs are not; --verify full does it all the same"
    )
    return "tensors"


def _differences(tensors: Mapping[str, LazyTensor], described: Described, folder: Path) -> Iterator[str]:
    """What the folder has that is not as in its source, one line each."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from dapo_cli.export.lazy_tensors import load_differences, shared_names

    try:
        different = list(_stored_differences(tensors, folder))
        config = AutoConfig.from_pretrained(folder)
        different += load_differences(tensors, config)
        loaded_tokenizer = AutoTokenizer.from_pretrained(folder)
        generation_config = GenerationConfig.from_pretrained(folder)
    except Exception as error:  # whatever stops a loader stops the user's too
        yield f"cannot be loaded: {type(error).__name__}: {error}"
        return
    yield from different
    tied = shared_names(described.config), shared_names(config)
    if tied[0] != tied[1]:
        yield f"output head: tied {bool(tied[0])}, loaded as tied {bool(tied[1])}"
    yield from tokenizer_differences(described.tokenizer, loaded_tokenizer)
    if comparable_generation_config(generation_config) != comparable_generation_config(described.generation_config):
        yield "generation_config.json: differs"


def _stored_differences(tensors: Mapping[str, LazyTensor], folder: Path) -> Iterator[str]:
    import torch

    from dapo_cli.export.safetensors_files import read_index, read_lazily

    where: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, stored in read_lazily([file]).items():
            where[name] = file.name
            if name in tensors and not torch.equal(stored.read(), tensors[name].read()):
                yield f"{name}: other values after loading"
    yield from (
        f"{name}: only in the {'files' if name in where else 'source'}" for name in where.keys() ^ tensors.keys()
    )
    if read_index(folder) not in (where, None):
        yield "the index names other files than hold the tensors"


def _compare_loaded(
    tensors: Mapping[str, LazyTensor], config: Any, folder: Path, destination: Path, note: Note
) -> dict[str, Any]:
    """What was found by loading the folder, in transformers and in vLLM, for the manifest.

    Raises:
        VerificationError: one of them does not load it, or computes something else than the source.
    """
    dtype = next(each.dtype for each in tensors.values() if each.dtype.is_floating_point)
    name = cast(Dtype, str(dtype).removeprefix("torch."))
    expected, different = _transformers_differences(tensors, config, folder, name)
    refuse_differences(destination, iter(different))
    reason = vllm_check.reason_not_to_ask(folder, config)
    if reason is None:
        note("loading it in vLLM")
        try:
            difference = vllm_check.vllm_difference(folder, config, name, expected)
            return {"logprobs": "equal", "vllm": f"log-probs differ by {difference:.2g} on average"}
        except UsageError as error:
            reason = error.message
    note(f"not loaded in vLLM: {reason}")
    return {"logprobs": "equal", "vllm": f"not loaded: {reason}"}


def _transformers_differences(
    tensors: Mapping[str, LazyTensor], config: Any, folder: Path, dtype: Dtype
) -> tuple[torch.Tensor, list[str]]:
    """The log-probs of the source and what a load has otherwise; the two models are in memory one after the other."""
    import torch
    from transformers import AutoModelForCausalLM

    from dapo_cli.export.lazy_tensors import load_into_model, loading_problems

    expected = probe_logprobs(load_into_model(tensors, config, getattr(torch, dtype)))
    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype="auto", output_loading_info=True
    )
    lines = [*loading_problems(info), *logprob_difference(expected, probe_logprobs(loaded.eval()), dtype)]
    return expected, lines


def _write_manifest(folder: Path, provenance: Mapping[str, Any], dtype: Dtype, verification: dict[str, Any]) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    content = {**provenance, **made_by(dtype), "verification": verification, "files_bytes": sizes}
    (folder / MANIFEST).write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")

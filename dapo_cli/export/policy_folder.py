"""From a training checkpoint back to a model: `model/` of the run says what it is, the checkpoint holds its weights."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo_cli.errors import DapoError, VerificationError
from dapo_cli.export.trained_weights import load_adapted, read_all, trained_tensors
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.run.directory import RunDirectory

if TYPE_CHECKING:
    import torch


def load_policy(run_dir: Path, checkpoint: Path) -> tuple[Any, Any]:
    """The float32 model and the tokenizer of a checkpoint folder of a run, on the CPU and in eval mode.

    A LoRA run's base model is loaded from where its recipe says, and the adapters are added to its weights.

    Raises:
        DapoError: a file is missing.
        UsageError: the base model of a LoRA run is not the one that it was trained on.
        VerificationError: the checkpoint's tensors are not those of the model; each is named.
    """
    from transformers import GenerationConfig

    from dapo_cli.export.description import read_tokenizer

    base, run = run_dir / "model", RunDirectory(run_dir)
    if not (base / "config.json").is_file():
        raise DapoError(f"{base / 'config.json'}: no such file", hint="Is this the folder of a run?")
    if load_recipe(run.recipe_file).recipe.model.lora is None:
        model = _whole_policy(base, checkpoint)
    else:
        from dapo_cli.policy.lora import merge_adapters

        model = load_adapted(run, checkpoint).policy
        merge_adapters(model)
    if (base / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(base)
    return model.eval(), read_tokenizer(base)


def _whole_policy(base: Path, checkpoint: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    state = read_all(trained_tensors(checkpoint))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.float32)
    _load_strictly(model, state, checkpoint)
    return model


def weights_hash(folder: Path) -> str:
    """Hash of the names and contents of the weight files in a folder: names the weights wherever they are copied.

    Raises:
        DapoError: there are no weight files.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    if not files:
        raise DapoError(f"{folder}: no .safetensors file")
    digest = blake2b(digest_size=16)
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()


def _load_strictly(model: Any, state: dict[str, torch.Tensor], source: Path) -> None:
    """Load `state` into `model`; a tensor that two names share (a tied head) is expected once, or twice and equal."""
    import torch

    expected = model.state_dict()
    owners: dict[int, str] = {}
    alias = {name: owners.setdefault(tensor.data_ptr(), name) for name, tensor in expected.items()}
    stored = {alias[name] for name in state if name in alias}
    wrong = [f"missing: {name}" for name in expected if alias[name] == name and name not in stored]
    wrong += [f"unexpected: {name}" for name in state if name not in expected]
    for name in state.keys() & expected.keys():
        if state[name].shape != expected[name].shape:
            wrong.append(f"{name}: shape {tuple(state[name].shape)}, the model has {tuple(expected[name].shape)}")
        elif alias[name] in state and not torch.equal(state[name], state[alias[name]]):
            wrong.append(f"{name}: differs from {alias[name]}, to which it is tied")
    if wrong:
        lines = "\n".join(f"  {line}" for line in sorted(wrong))
        raise VerificationError(f"{source}: not the weights of {type(model).__name__}\n{lines}")
    model.load_state_dict(state, strict=False)

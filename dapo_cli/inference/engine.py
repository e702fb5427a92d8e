"""The engine of `dapo infer`, which tells of every token as it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from dapo_cli.evaluation.engines import choose_tensor_parallel, weights_bytes
from dapo_cli.inference.setup import Setup
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.streaming import OnTokens
from dapo_cli.run.files import Note
from dapo_cli.types import RolloutRequest

Stream = Callable[[Sequence[RolloutRequest], OnTokens], None]


def choose_engine(recipe: Recipe, device: str) -> Literal["hf", "vllm"]:
    """`eval.engine` where it is stated; auto: vLLM on a GPU where it is installed, else hf, which starts at once."""
    from dapo_cli.rollout.vllm_environment import installed_vllm

    if recipe.eval.engine != "auto":
        return recipe.eval.engine
    return "vllm" if device == "cuda" and installed_vllm() is not None else "hf"


@contextmanager
def open_stream(setup: Setup, kind: Literal["hf", "vllm"], device: Any, note: Note) -> Iterator[Stream]:
    """Something that samples with the subject's weights on `device` (a torch device).

    Raises:
        UsageError: vLLM is not installed, or the weights do not fit.
    """
    if kind == "vllm" and setup.subject.weights_folder is not None:
        with _vllm_of_folder(setup, setup.subject.weights_folder, device.type, note) as stream:
            yield stream
        return
    from dapo_cli.backend.local import set_threads

    recipe, policy = setup.recipe, setup.subject.policy()
    policy.to(device)
    set_threads(recipe.backend, sum(parameter.numel() for parameter in policy.parameters()))
    if kind == "hf":
        from dapo_cli.rollout.hf_engine import HFEngine

        yield HFEngine(policy, setup.tokenizer, recipe.model.dtype, recipe.rollout.max_concurrent_rollouts).stream
        return
    from dapo_cli.backend.in_process import InProcessVLLM

    prompts = [prompt.prompt_ids for prompt in setup.prompts]
    engine = InProcessVLLM(recipe, setup.subject.source, setup.tokenizer, policy, prompts, note)
    try:
        engine.sync(0)
        yield engine.stream
    finally:
        engine.close()


@contextmanager
def _vllm_of_folder(setup: Setup, folder: Path, device: str, note: Note) -> Iterator[Stream]:
    """vLLM reads the weights itself, spread over as many GPUs as they need."""
    import torch
    from transformers import AutoConfig

    from dapo_cli.rollout.vllm_engine import VLLMEngine

    size = setup.recipe.eval.tensor_parallel
    if size == "auto":
        gpus = [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]
        heads = AutoConfig.from_pretrained(folder).get_text_config().num_attention_heads
        size = choose_tensor_parallel(weights_bytes(folder), gpus if device == "cuda" else [], heads)
    if size > 1:
        note(f"tensor parallel over {size} GPUs")
    rollout = setup.recipe.rollout.model_copy(update={"tensor_parallel": size})
    recipe = setup.recipe.model_copy(update={"rollout": rollout})
    kind: Literal["cuda", "cpu"] = "cuda" if device == "cuda" else "cpu"
    engine = VLLMEngine(recipe, str(folder), setup.tokenizer, kind, note, reads_weights=True)
    try:
        yield engine.stream
    finally:
        engine.close()

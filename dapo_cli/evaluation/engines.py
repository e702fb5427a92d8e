"""The engine of `dapo eval`: its own choice of kind and size, whatever the recipe trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dapo_cli.errors import UsageError
from dapo_cli.evaluation.evaluate import Respond, from_engine, one_by_one
from dapo_cli.evaluation.plan import EvaluationPlan
from dapo_cli.recipe.schema import Recipe
from dapo_cli.run.files import Note

WEIGHTS_SHARE = 0.7
"""Of a GPU's memory; the rest is cache and activations."""


@dataclass(slots=True, eq=False)
class Subject:
    """What is evaluated: where its weights, tokenizer and configs are. The policy itself is loaded when needed."""

    source: str
    """Folder or hub id of tokenizer and configs."""
    name: str
    """Equal names mean equal weights."""
    load: Callable[[], Any]
    weights_folder: Path | None
    """A Hugging Face folder of the very weights; None for those that are in a checkpoint only."""
    _policy: Any = field(default=None, repr=False)

    def policy(self) -> Any:
        """The policy, loaded once."""
        if self._policy is None:
            self._policy = self.load()
        return self._policy


def choose_engine(recipe: Recipe, note: Note) -> Literal["hf", "vllm"]:
    """The engine by `eval.engine`.

    >>> from dapo_cli.recipe.loading import load_recipe
    >>> choose_engine(load_recipe("demo", []).recipe, print)
    'hf'
    """
    from dapo_cli.rollout.vllm_environment import installed_vllm

    wanted = recipe.eval.engine
    if wanted != "auto":
        return wanted
    if recipe.rollout.engine == "vllm" and installed_vllm() is None:
        note("eval.engine: auto: vLLM is not installed, so hf samples, which is slow for long responses")
        return "hf"
    engine: Literal["hf", "vllm"] = recipe.rollout.engine
    return engine


def choose_tensor_parallel(weights_bytes: int, gpu_bytes: list[int], heads: int) -> int:
    """As few GPUs as hold the weights in `WEIGHTS_SHARE` of their memory, a power of two that divides `heads`.

    >>> choose_tensor_parallel(66 * 10**9, [80 * 10**9] * 8, 40), choose_tensor_parallel(10**9, [], 40)
    (2, 1)

    Raises:
        UsageError: all GPUs together do not hold them.
    """
    if not gpu_bytes:
        return 1
    sizes = [1 << power for power in range(len(gpu_bytes).bit_length())]
    for size in sizes:
        if heads % size == 0 and weights_bytes / size <= WEIGHTS_SHARE * min(gpu_bytes):
            return size
    raise UsageError(
        f"eval.tensor_parallel: weights of {weights_bytes / 1e9:.0f} GB do not fit {len(gpu_bytes)} GPUs of "
        f"{min(gpu_bytes) / 1e9:.0f} GB",
        hint="use more or larger GPUs, or evaluate a served model with --endpoint",
    )


def weights_bytes(folder: Path) -> int:
    """Size of the weight files in a Hugging Face folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt"))


@contextmanager
def open_engine(
    recipe: Recipe, subject: Subject, tokenizer: Any, plan: EvaluationPlan, note: Note
) -> Iterator[Respond]:
    """Something that answers questions with the subject's weights.

    Raises:
        UsageError: vLLM is not installed, or the weights do not fit.
    """
    from dapo_cli.backend.local import pick_device, set_threads

    recipe = _sized_for(plan, recipe)
    device = pick_device(recipe.backend)
    kind = choose_engine(recipe, note)
    if kind == "vllm" and subject.weights_folder is not None:
        with _vllm_of_folder(recipe, subject.weights_folder, tokenizer, device.type, note) as respond:
            yield respond
        return
    policy = subject.policy()
    policy.to(device)
    set_threads(recipe.backend, sum(parameter.numel() for parameter in policy.parameters()))
    if kind == "hf":
        from dapo_cli.rollout.hf_engine import HFEngine

        yield from_engine(
            HFEngine(policy, tokenizer, recipe.model.dtype, recipe.rollout.max_concurrent_rollouts).generate
        )
        return
    from dapo_cli.backend.in_process import InProcessVLLM

    engine = InProcessVLLM(
        recipe, subject.source, tokenizer, policy, [prompt.prompt_ids for prompt in plan.prompts], note
    )
    try:
        engine.sync(0)
        yield one_by_one(engine.generate_as_finished)
    finally:
        engine.close()


def _sized_for(plan: EvaluationPlan, recipe: Recipe) -> Recipe:
    """The recipe with limits on lengths that are those of this evaluation, whatever it trains with."""
    longest = max(len(prompt.prompt_ids) for prompt in plan.prompts)
    limit = plan.sampling.max_response_tokens
    changes = {
        "prompt": recipe.prompt.model_copy(update={"max_prompt_tokens": longest}),
        "rollout": recipe.rollout.model_copy(update={"max_response_tokens": limit}),
    }
    return recipe.model_copy(update=changes)


@contextmanager
def _vllm_of_folder(recipe: Recipe, folder: Path, tokenizer: Any, device: str, note: Note) -> Iterator[Respond]:
    """vLLM reads the weights itself, spread over as many GPUs as they need."""
    import torch
    from transformers import AutoConfig

    from dapo_cli.rollout.vllm_engine import VLLMEngine

    size = recipe.eval.tensor_parallel
    if size == "auto":
        gpus = [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]
        heads = AutoConfig.from_pretrained(folder).get_text_config().num_attention_heads
        # Files may be in another precision than the one they are computed in.
        size = choose_tensor_parallel(weights_bytes(folder), gpus if device == "cuda" else [], heads)
        if len(gpus) >= 2 * size:
            note(f"{len(gpus)} GPUs are visible and {size} are used; `dapo serve` uses all, with dapo eval --endpoint")
    rollout = recipe.rollout.model_copy(update={"tensor_parallel": size})
    engine = VLLMEngine(
        recipe.model_copy(update={"rollout": rollout}),
        str(folder),
        tokenizer,
        "cuda" if device == "cuda" else "cpu",
        note,
        reads_weights=True,
    )
    try:
        yield one_by_one(engine.generate_as_finished)
    finally:
        engine.close()

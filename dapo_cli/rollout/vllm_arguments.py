"""From a recipe to vLLM's arguments, every one that matters stated: nothing comes from a checkpoint or a default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Lora, Recipe
from dapo_cli.types import RolloutRequest, Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams

Device = Literal["cpu", "cuda"]

# Tokens of one prefill at a time. Larger is faster up to here, and costs memory for activations.
_PREFILL_TOKENS = {"cpu": 4096, "cuda": 8192}
# vLLM's own on x86 CPUs.
_CPU_BLOCK_TOKENS = 128
CPU_HEAD_WIDTHS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The widths of an attention head that vLLM has CPU kernels for; it would fail at the first forward with any other."""
# More would be taken from the trainer; a step that needs more preempts some rollouts and computes them again.
_LARGEST_CPU_CACHE_BYTES = 4 * 2**30
# vLLM has kernels and buffers for these ranks; a smaller adapter runs in the next larger one.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Both are vLLM's: it would raise a lower temperature to the first and refuses one above the second.
_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE = 0.01, 2.0


def max_model_tokens(recipe: Recipe) -> int:
    """The longest sequence the engine holds: the longest prompt and the longest response of training or evaluation."""
    longest = max(recipe.rollout.max_response_tokens, recipe.eval.max_response_tokens or 0)
    return recipe.prompt.max_prompt_tokens + longest


def engine_arguments(recipe: Recipe, model_folder: str, *, device: Device) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs for the policy in `model_folder` (a Hugging Face folder or a hub id).

    Weights are not read (they always arrive by weight sync), log-probs are those of the distribution that is sampled
    from, and a request's own fields are all that decides how it is sampled.

    Raises:
        UsageError: a LoRA rank or target, or on a CPU a width of attention heads, that vLLM cannot do.
    """
    rollout = recipe.rollout
    longest = max_model_tokens(recipe)
    arguments: dict[str, Any] = {
        "model": model_folder,
        "revision": recipe.model.revision,
        "tokenizer_revision": recipe.model.revision,
        "load_format": "dummy",
        "dtype": recipe.model.dtype,
        "kv_cache_dtype": "auto",  # that of the model
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_model_len": longest,
        "max_num_seqs": rollout.max_concurrent_rollouts,
        "max_num_batched_tokens": max(longest, rollout.max_concurrent_rollouts, _PREFILL_TOKENS[device]),
        # On CPUs a prompt cut in two ends the engine as soon as a request has a seed.
        "enable_chunked_prefill": device == "cuda",
        "enable_prefix_caching": True,
        "tensor_parallel_size": rollout.tensor_parallel,
        # Inside a Ray actor vLLM would otherwise make Ray actors of its own.
        "distributed_executor_backend": "uni" if rollout.tensor_parallel == 1 else "mp",
        "enforce_eager": rollout.enforce_eager,
        "enable_sleep_mode": device == "cuda",
        "seed": 0,  # never drawn from: each request brings its own
        "disable_log_stats": True,
    }
    if device == "cuda":
        arguments["gpu_memory_utilization"] = rollout.gpu_memory_utilization
    else:
        arguments["kv_cache_memory_bytes"] = _cpu_cache_bytes(recipe, model_folder)
    if recipe.model.lora is not None and recipe.model.lora.sync == "adapter":
        arguments |= _lora_arguments(recipe.model.lora)
    return arguments


def _lora_arguments(lora: Lora) -> dict[str, Any]:
    if lora.rank > _LORA_RANKS[-1]:
        raise UsageError(
            f"model.lora.rank: vLLM takes adapters up to rank {_LORA_RANKS[-1]}, got {lora.rank}",
            hint="lower it, or model.lora.sync: merged",
        )
    if "lm_head" in lora.targets:
        raise UsageError(
            "model.lora.targets: vLLM cannot score sequences while lm_head has an adapter",
            hint="remove lm_head, or model.lora.sync: merged",
        )
    return {
        "enable_lora": True,
        "max_lora_rank": next(rank for rank in _LORA_RANKS if rank >= lora.rank),
        "max_loras": 1,
        "max_cpu_loras": 1,
        # Left open, the head is wrapped too, and scoring a sequence ends the engine.
        "lora_target_modules": list(lora.targets),
    }


def _cpu_cache_bytes(recipe: Recipe, model_folder: str) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_folder, revision=recipe.model.revision)
    width = head_width(config.get_text_config())
    if width not in CPU_HEAD_WIDTHS:
        raise UsageError(
            f"model.path: {recipe.model.path}: its attention heads are {width} wide; vLLM on a CPU takes "
            f"{', '.join(map(str, CPU_HEAD_WIDTHS))}",
            hint="rollout.engine: hf",
        )
    block = cache_block_bytes(config, recipe.model.dtype, recipe.rollout.tensor_parallel)
    return cpu_cache_bytes(block, max_model_tokens(recipe), recipe.rollout.max_concurrent_rollouts)


def cache_block_bytes(config: Any, dtype: str, tensor_parallel: int) -> int:
    """Bytes of keys and values that a block of 128 tokens takes on one of `tensor_parallel` workers."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    element = {"float32": 4, "bfloat16": 2}[dtype]
    tokens = _CPU_BLOCK_TOKENS * text.num_hidden_layers * 2
    return int(tokens * max(1, heads // tensor_parallel) * head_width(text) * element)


def head_width(text: Any) -> int:
    """Values in one attention head of a model with this text config."""
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def cpu_cache_bytes(block_bytes: int, longest_tokens: int, rollouts: int) -> int:
    """Key-value cache for `rollouts` sequences of `longest_tokens` side by side, at most 4 GiB, at least for one.

    >>> cpu_cache_bytes(block_bytes=1000, longest_tokens=130, rollouts=8)  # 2 blocks each, and vLLM's empty block
    17000
    """
    blocks = -(-longest_tokens // _CPU_BLOCK_TOKENS)
    return max(min((rollouts * blocks + 1) * block_bytes, _LARGEST_CPU_CACHE_BYTES), (blocks + 1) * block_bytes)


def check_request(request: RolloutRequest, longest_tokens: int) -> None:
    """Refuse what vLLM would change or cut without an error.

    Raises:
        UsageError: a temperature outside of 0.01 to 2, or a prompt and response that do not fit.
    """
    sampling = request.sampling
    if not _LOWEST_TEMPERATURE <= sampling.temperature <= _HIGHEST_TEMPERATURE:
        raise UsageError(
            f"sampling: temperature: vLLM takes {_LOWEST_TEMPERATURE:g} to {_HIGHEST_TEMPERATURE:g}, "
            f"got {sampling.temperature:g}"
        )
    needed = len(request.prompt_ids) + sampling.max_response_tokens
    if needed > longest_tokens:
        raise UsageError(
            f"problem {request.problem.problem_id}: a prompt of {len(request.prompt_ids)} tokens and a response of "
            f"{sampling.max_response_tokens} need {needed} tokens, but the engine was started for {longest_tokens}",
            hint="raise prompt.max_prompt_tokens or rollout.max_response_tokens",
        )


def check_sequences(sequences: Sequence[npt.NDArray[np.int32]], longest_tokens: int) -> None:
    """Refuse to score sequences that are too short or do not leave room for the one token vLLM has to draw.

    Raises:
        ValueError: with the length.
    """
    for sequence in sequences:
        if not 2 <= len(sequence) < longest_tokens:
            raise ValueError(f"cannot score {len(sequence)} tokens: 2 to {longest_tokens - 1} are possible")


def sampling_params(sampling: Sampling, seed: int, *, streamed: bool = False) -> SamplingParams:
    """vLLM's sampling parameters of one rollout, every field stated; needs vLLM.

    A response ends at the first of `stop_token_ids` or with the token that completes a stop string; the checkpoint's
    end token means nothing by itself. Text is decoded by vLLM only where it has to look for stop strings. `streamed`
    asks for an output after every token, without log-probs.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        seed=engine_seed(seed),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        max_tokens=sampling.max_response_tokens,
        min_tokens=0,
        stop_token_ids=list(sampling.stop_token_ids),
        stop=list(sampling.stop_strings),
        ignore_eos=True,
        include_stop_str_in_output=False,
        skip_special_tokens=False,  # a stop string may be the text of a special token
        detokenize=bool(sampling.stop_strings),
        logprobs=None if streamed else 0,  # that of the token drawn, and no other
        flat_logprobs=True,
        output_kind=RequestOutputKind.CUMULATIVE if streamed else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def scoring_params() -> SamplingParams:
    """Parameters that return the log-prob of every token of a prompt; the one token they draw is thrown away."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        prompt_logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def engine_seed(seed: int) -> int:
    """The low 63 bits of a 64-bit seed: vLLM keeps seeds on a GPU as signed integers, and takes -1 for none."""
    return seed & (2**63 - 1)

"""A tiny random model with tied embeddings in a folder, its recipe, and requests for it, shared by the vLLM tests."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file
from samplings import changed
from tiny import tiny_recipe
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.policy.model import quiet_transformers
from dapo_cli.recipe.schema import Recipe
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.toy.tokenizer import build_tokenizer
from dapo_cli.types import Problem, RolloutRequest, Sampling

# Asking whether it is there, not importing it: that takes seconds, and it reads its environment variables then.
NEEDS_VLLM = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]
TOKENIZER = build_tokenizer()
SAMPLING = changed(max_response_tokens=32, stop_token_ids=(TOKENIZER.eos_token_id,))


def tied_model(seed: int) -> Any:
    """A random two-layer Llama whose head is its embedding, with a width of attention that vLLM's CPU kernels take."""
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_model(folder: Path) -> str:
    """The model of seed 0 and its tokenizer as a Hugging Face folder."""
    quiet_transformers()
    tied_model(0).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def vllm_recipe(**model: Any) -> Recipe:
    """A recipe whose engine holds sequences of 192 tokens, 24 side by side."""
    return tiny_recipe(
        model={"path": "toy"} | model,
        prompt={"max_prompt_tokens": 160},
        rollout={"engine": "vllm", "max_response_tokens": 32, "max_concurrent_rollouts": 24, "group_size": 4},
        train={"tokens_per_microbatch": 256},
    )


def requests(count: int, sampling: Sampling = SAMPLING, group_size: int = 4, first: int = 0) -> list[RolloutRequest]:
    """Groups with prompts of 3 to 9 tokens; the prompt and the seeds depend on the index alone."""
    prompts = {index: _tokens(3 + index % 7, 5 + index) for index in range(first, first + count)}
    return [_request(index, prompt, sampling, group_size) for index, prompt in prompts.items()]


def long_request(sampling: Sampling = SAMPLING) -> RolloutRequest:
    """A prompt of 140 tokens: longer than a block of the cache, so that its keys and values can be found again."""
    return _request(99, _tokens(140, 0), sampling, 4)


def _tokens(length: int, start: int) -> npt.NDArray[np.int32]:
    return ((np.arange(length) + start) % len(TOKENIZER)).astype(np.int32)


def _request(index: int, prompt: npt.NDArray[np.int32], sampling: Sampling, group_size: int) -> RolloutRequest:
    problem = Problem("id", "text", (), "1", "test")
    seeds = tuple(rollout_seed(index, sample) for sample in range(group_size))
    return RolloutRequest(index, problem, prompt, sampling, seeds)


def weights(model: Any) -> Any:
    """Names and tensors as in a checkpoint, the tied head included."""
    return iter(model.state_dict().items())


def logprobs_of(model: Any, sequence: Any, temperature: float = 1.0) -> Any:
    """Log-probs of tokens 1, 2, ... of a sequence by the model's own forward, [T - 1]."""
    ids = torch.from_numpy(sequence.astype(np.int64))
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature, -1)
    return scores.gather(1, ids[1:, None])[:, 0].numpy()


def sequences_of(groups: Any) -> list[Any]:
    """Prompt and response of every rollout."""
    return [np.concatenate([group.prompt_ids, r.response_ids]) for group in groups for r in group.rollouts]


def same_rollouts(left: Any, right: Any) -> bool:
    """Whether two lists of groups hold the same tokens and, bit for bit, the same log-probs."""
    pairs = zip(
        (r for group in left for r in group.rollouts), (r for group in right for r in group.rollouts), strict=True
    )
    return all(
        one.response_ids.tobytes() == two.response_ids.tobytes()
        and one.rollout_logprobs.tobytes() == two.rollout_logprobs.tobytes()
        for one, two in pairs
    )


def with_adapter(model: Any, folder: Path, seed: int) -> Any:
    """Write a random adapter of rank 4 and alpha 8 in PEFT's format, and add it to the weights of `model`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "down_proj")):
            down = 0.1 * torch.randn(4, module.in_features, generator=generator)
            up = 0.1 * torch.randn(module.out_features, 4, generator=generator)
            tensors |= {
                f"base_model.model.{name}.lora_A.weight": down,
                f"base_model.model.{name}.lora_B.weight": up,
            }
            module.weight.data += 8 / 4 * up @ down
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return model


def assert_sampled_from(model: Any, groups: Any, temperature: float = 1.0) -> None:
    """Check the recorded log-probs of `groups` against the model's own forward, to 1e-4."""
    for group in groups:
        for rollout in group.rollouts:
            sequence = np.concatenate([group.prompt_ids, rollout.response_ids])
            expected = logprobs_of(model, sequence, temperature)[len(group.prompt_ids) - 1 :]
            np.testing.assert_allclose(rollout.rollout_logprobs, expected, atol=1e-4)

"""A tiny packed model, a recipe for it and fixed rollouts, shared by the tests of policy, rollout and backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.policy import attention
from dapo_cli.policy.batch import Batch
from dapo_cli.recipe.schema import Recipe

VOCAB = 32


def tiny_policy(seed: int = 0, scale: float = 1.0) -> Any:
    """A random two-layer Llama with packed attention; `scale` sharpens its distribution."""
    torch.manual_seed(seed)
    attention.register()
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.2 * scale,
    )
    config._attn_implementation = attention.NAME
    return LlamaForCausalLM(config).eval()


def tiny_recipe(**changes: dict[str, Any]) -> Recipe:
    """A valid recipe; `changes` maps a section to keys to set in it."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"path": "toy"},
        "dataset": {"name": "toy_sums"},
        "prompt": {"max_prompt_tokens": 16},
        "rollout": {"max_response_tokens": 16, "group_size": 4},
        "dynamic_sampling": {"max_drawn_problems": 64},
        "train": {
            "steps": 2,
            "prompts_per_step": 4,
            "prompts_per_minibatch": 2,
            "tokens_per_microbatch": 64,
            "learning_rate": 1e-2,
            "warmup_steps": 0,
        },
    }
    for section, keys in changes.items():
        sections[section] = sections.get(section, {}) | keys
    return Recipe.model_validate(sections, strict=False)


def fixed_batch(num_groups: int = 4, group_size: int = 4, seed: int = 0) -> Batch:
    """Ragged random rollouts with +-1-like advantages and old log-probs near a uniform policy's."""
    generator = np.random.default_rng(seed)
    size = num_groups * group_size
    prompts = np.repeat(generator.integers(2, 7, num_groups), group_size).astype(np.int32)
    responses = generator.integers(1, 10, size).astype(np.int32)
    num_tokens = int(responses.sum())
    return Batch(
        token_ids=generator.integers(0, VOCAB, int((prompts + responses).sum())).astype(np.int32),
        prompt_lengths=prompts,
        response_lengths=responses,
        groups=np.repeat(np.arange(num_groups), group_size).astype(np.int32),
        advantages=generator.normal(size=size).astype(np.float32),
        in_loss=generator.random(size) < 0.8,
        rollout_logprobs=np.full(num_tokens, -3.0, dtype=np.float32),
        old_logprobs=(-3.4 + 0.5 * generator.normal(size=num_tokens)).astype(np.float32),
    )

"""Three AdamW updates of a tiny model on fixed rollouts, by an implementation that shares nothing with the package.

The forward pass is the stock Llama of transformers on a right-padded batch with full logits; advantages, loss,
gradient clipping and AdamW are written out here. Everything is computed in float64, but for the norms, rotary angles
and attention softmax, which transformers keeps in float32. The same updates of a float32 model end within 5e-7 of these
parameters. The numbers are in three_updates.json; to make them again:

    python tests/policy/reference_updates/generate.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

OUTPUT = Path(__file__).with_name("three_updates.json")

MODEL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
TRAIN = {
    "updates": 3,
    "temperature": 1.0,
    "normalize": "group_std",
    "loss_denominator": "minibatch",
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.28,
    "dual_clip_ratio": 10.0,
    "learning_rate": 3e-3,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}
WEIGHTS_RECIPE = (
    "With the parameters in alphabetical order and i counting all their elements from 0: "
    "u = ((i * i * 2654435761 + i * 40503 + 12345) mod 2**32 >> 16) mod 1024 - 512. "
    "Matrices hold u / 1024, norm weights 1 + (u // 4) / 1024, exact in float32. "
    "initial_parameters_1024ths holds every parameter times 1024, flat."
)
REWARDS = [
    [1.0, -1.0, -1.0, 1.0],
    [0.75, -1.0, -1.5, -1.0],
    [1.0, 1.0, 0.5, -1.25],
    [-1.0, 1.0, -1.0, -2.0],
]
"""Correctness of +-1 plus overlong penalties, [groups, group size]."""


def initial_parameters(model: LlamaForCausalLM) -> dict[str, list[int]]:
    """Every parameter times 1024, flat, after WEIGHTS_RECIPE."""
    parameters, i = {}, 0
    for name, parameter in sorted(model.named_parameters()):
        values = []
        for _ in range(parameter.numel()):
            u = (((i * i * 2654435761 + i * 40503 + 12345) % 2**32) >> 16) % 1024 - 512
            values.append(1024 + u // 4 if parameter.dim() == 1 else u)
            i += 1
        parameters[name] = values
    return parameters


def make_rollouts() -> list[dict]:
    """16 rollouts: prompts of 3 to 6 tokens shared within a group, responses of 1 to 9 tokens."""
    rollouts = []
    for group, rewards in enumerate(REWARDS):
        prompt = [(7 * group + 5 * t + 3) % 32 for t in range(3 + group)]
        for member, reward in enumerate(rewards):
            length = 1 + (5 * group + 4 * member) % 9
            response = [(11 * group + 13 * member + 6 * t + t * t + 1) % 32 for t in range(length)]
            rollouts.append(
                {"group": group, "prompt_length": len(prompt), "token_ids": prompt + response, "reward": reward}
            )
    return rollouts


def response_logprobs(model: LlamaForCausalLM, rollouts: list[dict]) -> list[Tensor]:
    """Log-probs of each rollout's response tokens."""
    longest = max(len(rollout["token_ids"]) for rollout in rollouts)
    ids = torch.zeros(len(rollouts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, rollout in enumerate(rollouts):
        ids[row, : len(rollout["token_ids"])] = torch.tensor(rollout["token_ids"])
        mask[row, : len(rollout["token_ids"])] = 1
    logits = model(input_ids=ids, attention_mask=mask).logits / TRAIN["temperature"]
    logprobs = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, ids[:, 1:, None])[:, :, 0]
    return [
        logprobs[row, rollout["prompt_length"] - 1 : len(rollout["token_ids"]) - 1]
        for row, rollout in enumerate(rollouts)
    ]


def advantages() -> list[float]:
    """(reward - mean) / (Bessel std + 1e-6), rollout by rollout."""
    values = []
    for rewards in REWARDS:
        mean = sum(rewards) / len(rewards)
        std = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
        values += [(reward - mean) / (std + 1e-6) for reward in rewards]
    return values


def minibatch_loss(logprobs: list[Tensor], old_logprobs: list[list[float]]) -> tuple[Tensor, dict[str, float]]:
    """The token-mean clipped loss, and the fractions of clipped tokens."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    clipped = {"clip_fraction_low": 0, "clip_fraction_high": 0, "clip_fraction_dual": 0}
    low, high = 1 - TRAIN["clip_ratio_low"], 1 + TRAIN["clip_ratio_high"]
    for new, old, advantage in zip(logprobs, old_logprobs, advantages(), strict=True):
        ratio = (new - torch.tensor(old, dtype=torch.float64)).exp()
        loss = -torch.minimum(advantage * ratio, advantage * ratio.clamp(low, high))
        if advantage < 0:
            clipped["clip_fraction_dual"] += int((ratio > TRAIN["dual_clip_ratio"]).sum())
            loss = torch.minimum(loss, torch.full_like(loss, -advantage * TRAIN["dual_clip_ratio"]))
            clipped["clip_fraction_low"] += int((ratio < low).sum())
        else:
            clipped["clip_fraction_high"] += int((ratio > high).sum())
        total = total + loss.sum()
        tokens += len(old)
    return total / tokens, {name: count / tokens for name, count in clipped.items()}


def adamw(model: LlamaForCausalLM, moments: dict[str, tuple[Tensor, Tensor]], number: int, scale: float) -> None:
    """Update `number` (from 1) of every parameter, with its gradient times `scale`; weight decay is decoupled."""
    beta1, beta2, rate = TRAIN["adam_beta1"], TRAIN["adam_beta2"], TRAIN["learning_rate"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gradient = parameter.grad * scale
            first, second = moments[name]
            first.copy_(beta1 * first + (1 - beta1) * gradient)
            second.copy_(beta2 * second + (1 - beta2) * gradient * gradient)
            step = (first / (1 - beta1**number)) / ((second / (1 - beta2**number)).sqrt() + TRAIN["adam_epsilon"])
            parameter.copy_(parameter * (1 - rate * TRAIN["weight_decay"]) - rate * step)


def run(dtype: torch.dtype = torch.float64) -> dict:
    """The three updates with the model in `dtype`."""
    model = LlamaForCausalLM(LlamaConfig(**MODEL, attn_implementation="eager")).to(dtype)
    initial = initial_parameters(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((torch.tensor(initial[name], dtype=torch.float64) / 1024).view_as(parameter))
    rollouts = make_rollouts()
    with torch.no_grad():
        for rollout, logprobs in zip(rollouts, response_logprobs(model, rollouts), strict=True):
            rollout["old_logprobs"] = [round(value, 9) for value in logprobs.tolist()]
    old_logprobs = [rollout["old_logprobs"] for rollout in rollouts]
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
    updates = []
    for number in range(1, TRAIN["updates"] + 1):
        model.zero_grad()
        loss, fractions = minibatch_loss(response_logprobs(model, rollouts), old_logprobs)
        loss.backward()
        grad_norm = sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5
        # The small constant is that of torch.nn.utils.clip_grad_norm_.
        adamw(model, moments, number, min(1.0, TRAIN["max_grad_norm"] / (grad_norm + 1e-6)))
        updates.append({"loss": loss.item(), "grad_norm": grad_norm, **fractions})
    final = {name: [round(v, 9) for v in p.detach().flatten().tolist()] for name, p in model.named_parameters()}
    return {
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "model": MODEL,
        "train": TRAIN,
        "weights_recipe": WEIGHTS_RECIPE,
        "rollouts": rollouts,
        "updates": updates,
        "initial_parameters_1024ths": initial,
        "final_parameters": final,
    }


def write(result: dict) -> None:
    """One line per entry of the larger sections, so that a change reads well in a diff."""
    lines = []
    for key, value in result.items():
        if isinstance(value, dict) and key.endswith(("1024ths", "parameters")):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        elif isinstance(value, list):
            lines.append(f"{json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write(run())
    sys.stdout.write(f"wrote {OUTPUT}\n")

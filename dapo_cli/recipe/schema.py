"""The recipe: every setting of a run, one section per stage, strict and frozen.

A key that is not here is refused, and every key here is read by some stage. Ranges that concern one key are on the
field; rules that concern several are in `combinations.py`. The description of a field is what editors and
docs/recipe.md show. The problems: `schema_dataset.py`. How responses are judged: `schema_reward.py`. Where a run takes
place and what is kept of it: `schema_run.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dapo_cli.recipe.schema_dataset import Dataset, DatasetPart
from dapo_cli.recipe.schema_reward import Reward
from dapo_cli.recipe.schema_run import Backend, Checkpoint, Eval, Preflight, Tracking
from dapo_cli.recipe.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section

__all__ = [
    "Advantage",
    "Backend",
    "Checkpoint",
    "Dataset",
    "DatasetPart",
    "DynamicSampling",
    "EmulatedPartition",
    "Eval",
    "FewShotExample",
    "Lora",
    "Model",
    "Preflight",
    "Prompt",
    "Recipe",
    "Reward",
    "Rollout",
    "Section",
    "Tracking",
    "Train",
]


class Lora(Section):
    """Low-rank adapters: only they are trained, the base weights stay as they are."""

    rank: PositiveInt = Field(default=16, description="Rank of each adapter.")
    alpha: PositiveFloat = Field(default=32.0, description="An adapter counts alpha / rank times.")
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="Names of the linear layers that get an adapter.",
    )
    sync: Literal["merged", "adapter"] = Field(
        default="adapter",
        description="What a vLLM engine is sent: the adapters alone, or the weights with the adapters added.",
    )


class Model(Section):
    """The policy: which weights, in which precision."""

    path: str = Field(
        description="Hub id, local folder, .gguf file, package:NAME (the .gguf file inside an installed Python "
        "package), or toy (a small decoder made locally)."
    )
    revision: str | None = Field(default=None, description="Hub revision; null is the newest.")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Precision of forward and backward; the optimizer and its master weights are float32.",
    )
    activation_checkpointing: bool = Field(default=False, description="Recompute activations in the backward pass.")
    lora: Lora | None = Field(default=None, description="Train adapters instead of all weights; null: all weights.")


class FewShotExample(Section):
    """A solved problem shown before the real one."""

    problem: str = Field(description="The problem, which goes into the template.")
    answer: str = Field(description="The response the model should imitate.")


class Prompt(Section):
    """From a problem to the token ids the engine sees."""

    template: str = Field(
        default="dapo",
        description="dapo (the published instruction), boxed (asks for \\boxed{}), problem (the problem alone), or a "
        "text in which {problem} is replaced; other braces stay.",
    )
    format: Literal["chat", "plain"] = Field(
        default="chat", description="chat: through a chat template. plain: the filled-in template itself, as text."
    )
    chat_template: str | None = Field(
        default=None, description="A jinja file to use in place of the tokenizer's own chat template; chat format only."
    )
    template_arguments: dict[str, Any] = Field(default={}, description="Extra variables for the chat template.")
    system: str | None = Field(default=None, description="System prompt; chat format only.")
    few_shot: tuple[FewShotExample, ...] = Field(
        default=(),
        description="Solved examples before the problem. chat: each is a user turn (the filled-in template) and an "
        "assistant turn (the answer). plain: each is the filled-in template, one space and the answer; examples and "
        "the real problem's filled-in template are joined by few_shot_separator.",
    )
    few_shot_separator: str = Field(default="\n\n", description="Text after each few-shot example; plain format only.")
    max_prompt_tokens: PositiveInt = Field(default=2048, description="Longest rendered prompt; nothing is ever cut.")
    long_prompts: Literal["refuse", "drop"] = Field(default="refuse", description="What happens to a longer prompt.")


class Rollout(Section):
    """How responses are sampled for training."""

    engine: Literal["hf", "vllm"] = Field(
        default="hf",
        description="hf samples from the very weights that are trained; vllm has its own copy, synced after each step.",
    )
    group_size: PositiveInt = Field(default=16, description="Responses per problem.")
    max_response_tokens: PositiveInt = Field(description="Longest response; longer ones are truncated and marked.")
    temperature: PositiveFloat = Field(default=1.0, description="Trainer and engine both divide the logits by it.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Must be 1: below it, what is sampled is not what is trained."
    )
    stop_token_ids: Literal["generation_config"] | tuple[NonNegativeInt, ...] = Field(
        default="generation_config", description="A response ends at, and includes, the first of these."
    )
    stop_strings: tuple[str, ...] = Field(
        default=(), description="A response ends when its text contains one of these."
    )
    max_concurrent_rollouts: PositiveInt = Field(
        default=256, description="Rollouts sampled side by side; bounds memory."
    )
    tensor_parallel: PositiveInt = Field(default=1, description="GPUs that one vLLM replica is spread over.")
    gpu_memory_utilization: float = Field(
        default=0.7, gt=0, le=1, description="Share of a GPU's memory that vLLM takes, weights and cache together."
    )
    enforce_eager: bool = Field(
        default=True,
        description="vLLM without compilation and CUDA graphs, as in the public run: its authors suspect graphs of "
        "lowering quality.",
    )
    seed: NonNegativeInt = Field(default=0, description="Seed of the run; each rollout's own is hashed from it.")


class DynamicSampling(Section):
    """Which groups are trained on (paper, equation 11)."""

    enabled: bool = Field(
        default=True, description="Train on informative groups only, and draw until the step is full."
    )
    min_correct: PositiveInt = Field(
        default=1, description="Fewest right answers of an accepted group, before any penalty."
    )
    max_correct: int = Field(
        default=-1, ge=-1, description="Most right answers of an accepted group; -1 is group_size - 1."
    )
    refill: Literal["one_for_one", "whole_batches"] = Field(
        default="one_for_one",
        description="Draw one problem per dropped group, or problems_per_batch at a time as the script did.",
    )
    problems_per_batch: PositiveInt | None = Field(
        default=None, description="Problems per draw; with whole_batches only."
    )
    max_drawn_problems: PositiveInt = Field(
        description="Most problems drawn for one step; with whole_batches a multiple of problems_per_batch."
    )
    when_exhausted: Literal["smaller_step", "stop"] = Field(
        default="smaller_step", description="At that bound: train on the groups found, or stop with a checkpoint."
    )
    max_empty_steps: PositiveInt = Field(
        default=3,
        description="Steps in a row without an informative group after which the run stops with a checkpoint.",
    )


class Advantage(Section):
    """From rewards to advantages."""

    normalize: Literal["group_std", "none"] = Field(
        default="group_std",
        description="group_std: (reward - mean) / (Bessel std + 1e-6). none: reward - mean (Dr. GRPO).",
    )


class EmulatedPartition(Section):
    """The micro-batches of another machine, for loss_denominator: microbatch."""

    ranks: PositiveInt = Field(description="Data-parallel ranks whose micro-batches are emulated.")
    tokens_per_microbatch: PositiveInt = Field(description="Token budget of an emulated micro-batch.")


class Train(Section):
    """The optimizer and the loss."""

    steps: PositiveInt = Field(description="Rollout steps.")
    prompts_per_step: PositiveInt = Field(description="Groups per step, after dynamic sampling.")
    prompts_per_minibatch: PositiveInt = Field(description="Groups per optimizer update.")
    tokens_per_microbatch: PositiveInt = Field(description="Token budget of one forward; no effect on the gradient.")
    logits_chunk_tokens: PositiveInt = Field(
        default=1024, description="Response tokens whose logits exist at the same time."
    )
    loss_denominator: Literal["minibatch", "group", "sequence", "microbatch"] = Field(
        default="minibatch",
        description="Token mean over the minibatch, per group (eq. 8), per sequence (GRPO), or as verl 2025-05.",
    )
    emulated_partition: EmulatedPartition | None = Field(
        default=None, description="Required by microbatch, else refused."
    )
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1, description="Lower clip distance.")
    clip_ratio_high: PositiveFloat = Field(default=0.28, description="Upper clip distance; naive GRPO uses 0.2.")
    dual_clip_ratio: float | None = Field(
        default=10.0, gt=1, description="Bound on the ratio of negative advantages; null: off."
    )
    learning_rate: PositiveFloat = Field(description="AdamW; constant after the warm-up.")
    warmup_steps: NonNegativeInt = Field(default=20, description="Rollout steps of linear warm-up.")
    warmup_from_zero: bool = Field(
        default=False,
        description="Step k of the warm-up uses (k-1)/warmup_steps, as the public run did, instead of k/warmup_steps.",
    )
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean of gradients.")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW's decay of the mean of squared gradients.")
    adam_epsilon: PositiveFloat = Field(default=1e-8, description="AdamW's addition to the denominator.")
    weight_decay: NonNegativeFloat = Field(default=0.1, description="AdamW's decoupled weight decay.")
    max_grad_norm: PositiveFloat = Field(
        default=1.0,
        description="Longer gradients are scaled down to it. A non-finite one skips the update and is counted.",
    )
    stop_after_seconds: PositiveFloat | None = Field(
        default=None, description="Save and stop after this long; null: never."
    )


class Recipe(Section):
    """A whole run."""

    model: Model
    dataset: Dataset
    prompt: Prompt = Prompt()
    rollout: Rollout
    reward: Reward = Reward()
    dynamic_sampling: DynamicSampling
    advantage: Advantage = Advantage()
    train: Train
    preflight: Preflight = Preflight()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    backend: Backend = Backend()

"""The sections of the recipe that say where a run takes place and what is seen and kept of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dapo_cli.recipe.section import NonNegativeInt, PositiveFloat, PositiveInt, Section


class Preflight(Section):
    """What is checked before step 1."""

    problems: NonNegativeInt = Field(default=16, description="Problems whose pass rate is measured; 0 measures none.")


class Eval(Section):
    """Periodic evaluation."""

    benchmark: str = Field(default="heldout", description="A card in evals/, or the path of a card of your own.")
    files: dict[str, str] = Field(
        default={}, description="Local copies of benchmarks, by the card's name; others come from the hub."
    )
    samples: PositiveInt | None = Field(
        default=None, description="Responses per problem, the n of avg@n; null: the card's, else 4."
    )
    final_samples: PositiveInt | None = Field(
        default=None, description="The same for the evaluation after the last step; null: `samples`."
    )
    max_response_tokens: PositiveInt | None = Field(
        default=None, description="Longest response; null: the card's, else rollout.max_response_tokens."
    )
    model: str | None = Field(
        default=None, description="What `dapo eval RECIPE` evaluates, as model.path; null: model.path itself."
    )
    engine: Literal["auto", "hf", "vllm"] = Field(
        default="auto", description="Of dapo eval; auto: rollout.engine, and hf where vLLM is not installed."
    )
    tensor_parallel: Literal["auto"] | PositiveInt = Field(
        default="auto", description="GPUs that dapo eval spreads the model over; auto: as few as hold its weights."
    )
    problems: PositiveInt | None = Field(default=None, description="Evaluate the first so many problems; null: all.")
    every: PositiveInt | None = Field(default=None, description="Steps between evaluations; null: only at the end.")
    before_training: bool = Field(default=True, description="Evaluate before step 1.")
    after_training: bool = Field(default=True, description="Evaluate after the last step.")


class Checkpoint(Section):
    """What is kept for resuming."""

    every: PositiveInt = Field(
        default=20, description="Steps between checkpoints; one is also written at the end and on stop."
    )
    keep_last: PositiveInt | Literal["all"] = Field(default=2, description="Newest checkpoints kept.")
    keep_best: NonNegativeInt = Field(
        default=0, description="Checkpoints with the highest best_metric kept besides keep_last."
    )
    best_metric: str | None = Field(
        default=None, description="A key of metrics.jsonl, higher is better; null: the evaluation's avg@n."
    )
    asynchronous: bool = Field(
        default=False, description="Write in the background while training goes on; costs a copy in host memory."
    )


class Tracking(Section):
    """Where metrics and rollouts go besides metrics.jsonl."""

    wandb: Literal["off", "offline", "online"] = Field(
        default="off", description="offline writes a folder to upload later."
    )
    project: str = Field(default="dapo", description="wandb project.")
    entity: str | None = Field(default=None, description="wandb team or user; null: the one that is logged in.")
    group: str | None = Field(default=None, description="wandb group of runs that belong together.")
    tags: tuple[str, ...] = Field(default=(), description="wandb tags.")
    names: Literal["dapo", "verl"] = Field(
        default="dapo", description="verl: names of wandb's curves as verl logs them, to lie over public runs."
    )
    table_rollouts: NonNegativeInt = Field(default=4, description="Rollouts per step in wandb's table of texts.")
    rollouts: Literal["all", "sample", "none"] = Field(default="sample", description="Rollouts written to rollouts/.")
    sampled_groups: PositiveInt = Field(default=4, description="Groups written per step with rollouts: sample.")


class Backend(Section):
    """Where the policy and the engine run."""

    kind: Literal["local", "ray"] = Field(
        default="local",
        description="local: policy and engine in one process. ray: policy ranks and vLLM replicas on a Ray cluster.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes the GPU when there is one.")
    threads: PositiveInt | None = Field(
        default=None, description="CPU threads of torch per process; null: 1 for models under 5M parameters."
    )
    nodes: PositiveInt = Field(default=1, description="Machines of the cluster.")
    gpus_per_node: NonNegativeInt = Field(
        default=0, description="GPUs of each machine; 0 runs on CPUs, with gloo in place of NCCL."
    )
    policy_ranks: PositiveInt | None = Field(
        default=None,
        description="FSDP2 ranks; null: every GPU (colocated), or what the engines leave (separate).",
    )
    engine_replicas: PositiveInt | None = Field(
        default=None,
        description="vLLM replicas; null: as many as fit on the GPUs (colocated), or on what the policy leaves.",
    )
    placement: Literal["colocated", "separate"] = Field(
        default="colocated",
        description="colocated: policy and engine share GPUs, and the engine sleeps during updates. separate: each "
        "has its own.",
    )
    ranks_per_shard_group: PositiveInt | None = Field(
        default=None,
        description="Hybrid sharding: weights are sharded over so many ranks and replicated across groups; null: "
        "sharded over all.",
    )
    offload: tuple[Literal["parameters", "optimizer"], ...] = Field(
        default=(),
        description="What rests in host memory. optimizer: its state between updates. parameters: weights, gradients "
        "and the optimizer, which then runs on the CPU.",
    )
    timeout_seconds: PositiveFloat = Field(
        default=1800.0, description="Longest wait for a rank or an engine, after which the run stops and names it."
    )

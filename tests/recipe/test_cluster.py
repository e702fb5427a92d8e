"""Ranks and replicas of a recipe, and divisions of GPUs that cannot be."""

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.recipe.cluster import ClusterShape, cluster_shape
from dapo_cli.recipe.loading import load_recipe

RAY = "backend.kind=ray"


def shape(*overrides, name="smoke"):
    return cluster_shape(load_recipe(name, overrides).recipe)


def refusal(*overrides, name="smoke"):
    with pytest.raises(UsageError) as refused:
        load_recipe(name, overrides)
    return refused.value.message


def test_the_reference_has_a_rank_on_every_gpu_and_32_replicas_of_four():
    assert shape(name="dapo_qwen32b") == ClusterShape(128, 32, 1, 4, 128)


def test_a_smoke_run_has_two_ranks_and_a_replica_on_cpus():
    assert shape() == ClusterShape(2, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("ranks", "replicas", "expected"),
    [(4, "null", (4, 2)), ("null", 2, (4, 2)), ("null", 1, (6, 1)), (6, 1, (6, 1))],
)
def test_separate_gpus_are_what_the_other_side_leaves(ranks, replicas, expected):
    overrides = [f"backend.policy_ranks={ranks}", f"backend.engine_replicas={replicas}", "rollout.tensor_parallel=2"]
    assert shape("backend.gpus_per_node=8", *overrides)[:2] == expected


def test_the_hf_engine_does_not_run_on_a_cluster():
    assert "rollout.engine: hf samples from weights in its own process" in refusal("rollout.engine=hf")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["backend.gpus_per_node=8", "rollout.tensor_parallel=3"], "8 GPUs do not divide into replicas of 3"),
        (["rollout.tensor_parallel=2"], "and gpus_per_node is 0"),
        (["backend.kind=local", "rollout.tensor_parallel=2"], "the local backend has one device, not 2"),
        (["backend.device=cuda"], "device: cuda with gpus_per_node: 0"),
        (["backend.gpus_per_node=4", "backend.policy_ranks=null", "backend.engine_replicas=null"], "does not say how"),
        (["backend.gpus_per_node=4", "backend.policy_ranks=4", "backend.engine_replicas=null"], "it comes to 0"),
        (["backend.gpus_per_node=4", "backend.policy_ranks=4"], "need 5 GPUs separate, and there are 4"),
        (
            ["backend.gpus_per_node=4", "backend.placement=colocated", "backend.engine_replicas=3"],
            "colocated engines use the 2 GPUs of the policy",
        ),
        (["backend.ranks_per_shard_group=3"], "2 policy ranks do not divide into shard groups of 3"),
        (["backend.offload=[parameters]"], "the optimizer works where the parameters are"),
        (["model.lora={rank: 4, targets: []}"], "no layer gets an adapter"),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(overrides, expected):
    assert expected in refusal(*overrides)


@pytest.mark.parametrize(
    ("overrides", "notes"),
    [
        ([], []),
        (["train.prompts_per_minibatch=1", "rollout.group_size=2", "backend.policy_ranks=2"], []),
        (
            ["train.prompts_per_minibatch=1", "rollout.group_size=2", "backend.policy_ranks=3"],
            [
                "train.prompts_per_minibatch: 2 rollouts per update (prompts_per_minibatch x group_size) leave "
                "1 of 3 policy ranks without work"
            ],
        ),
        (
            ["backend.gpus_per_node=8", "rollout.tensor_parallel=2"],
            ["backend.gpus_per_node: 4 of 8 GPUs are not used by 2 policy ranks and 1 replicas of 2 GPUs"],
        ),
        (
            ["backend.gpus_per_node=4", "backend.placement=colocated", "backend.policy_ranks=null"],
            ["backend.engine_replicas: 3 of the policy's 4 GPUs rest while 1 replicas of 1 GPUs sample"],
        ),
        (
            ["backend.gpus_per_node=4", "backend.placement=colocated", "backend.policy_ranks=3"],
            [
                "backend.gpus_per_node: 1 of 4 GPUs are not used by 3 policy ranks and 1 replicas of 1 GPUs",
                "backend.engine_replicas: 2 of the policy's 3 GPUs rest while 1 replicas of 1 GPUs sample",
            ],
        ),
        (["backend.gpus_per_node=4", "backend.engine_replicas=2"], []),
    ],
)
def test_ranks_and_gpus_without_work_are_noted(overrides, notes):
    assert list(load_recipe("smoke", overrides).notes) == notes


@pytest.mark.parametrize("name", ["dapo_qwen32b", "dapo_qwen7b_math_8gpu"])
def test_the_cluster_recipes_leave_nothing_without_work(name):
    assert load_recipe(name).notes == ()

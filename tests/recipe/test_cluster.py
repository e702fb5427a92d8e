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

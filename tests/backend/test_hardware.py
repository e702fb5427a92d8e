"""What is missing is named before anything starts."""

import importlib.util

import pytest
from tiny import tiny_recipe

from dapo_cli.backend.hardware import check_cluster, check_hardware, described
from dapo_cli.errors import UsageError


def cluster_recipe(**backend):
    return tiny_recipe(rollout={"engine": "vllm"}, backend={"kind": "ray", **backend})


def node(name, gpus, alive=True):
    return {"Alive": alive, "NodeManagerHostname": name, "Resources": {"CPU": 8.0, "GPU": float(gpus)}}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_recipe_of_sixteen_nodes_names_them_and_what_this_machine_has(monkeypatch):
    monkeypatch.setattr("dapo_cli.backend.hardware._visible_gpus", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(UsageError) as refused:
        check_hardware(cluster_recipe(nodes=16, gpus_per_node=8))
    assert "16 nodes with 8 GPUs each (128 GPUs)" in refused.value.message
    assert "RAY_ADDRESS is not set" in refused.value.message
    assert "0 GPUs and 2 CPU cores" in refused.value.message
    assert "docs/cluster.md" in refused.value.hint


def test_a_node_with_too_few_gpus_is_told_how_many_are_missing(monkeypatch):
    monkeypatch.setattr("dapo_cli.backend.hardware._visible_gpus", lambda: 2)
    with pytest.raises(UsageError, match="6 are missing"):
        check_hardware(cluster_recipe(gpus_per_node=8))


def test_missing_packages_are_named_together(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="ray and vllm") as refused:
        check_hardware(cluster_recipe())
    assert "setup-cpu" in refused.value.hint
    check_hardware(tiny_recipe())


def test_a_cluster_with_nodes_to_spare_is_accepted_and_dead_ones_do_not_count():
    recipe = cluster_recipe(nodes=2, gpus_per_node=8)
    check_cluster(recipe, [node("a", 8), node("b", 8), node("head", 0)])
    with pytest.raises(UsageError) as refused:
        check_cluster(recipe, [node("a", 8), node("b", 8, alive=False), node("c", 4)])
    assert "a (8 GPUs), c (4 GPUs): 1 such nodes are missing" in refused.value.message


def test_what_there_is_is_said_node_by_node():
    nodes = [node("b", 8), node("a", 0), node("c", 8, alive=False)]
    assert described(nodes) == "a (0 GPUs, 8 CPUs), b (8 GPUs, 8 CPUs)"

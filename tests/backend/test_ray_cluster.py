"""The cluster backend with real ranks and a real engine: the numbers of the local backend, and weights that arrive."""

import time

import numpy as np
import pytest
import torch
from ranks import read_policy_tensors
from small_cluster import LORA, NEEDS_CLUSTER, close_enough, cluster_recipe, local_backend, ragged_batch, running
from vllm_tiny import assert_sampled_from, long_request, requests, same_rollouts, tied_model

from dapo_cli.backend.arrivals import StaleWeights
from dapo_cli.policy.batch import microbatch_bounds
from dapo_cli.policy.partition import shares

pytestmark = NEEDS_CLUSTER


@pytest.fixture
def synced(cluster, tmp_path_factory):
    """The cluster with the weights it started with, in its engine too."""
    start = tmp_path_factory.getbasetemp() / "start"
    if start.is_dir():
        cluster.load(start)
    else:
        cluster.save(start)
    cluster.sync_weights(0)
    return cluster


def learn(backend, batch, updates=3):
    """Old log-probs and the metrics of a few updates."""
    batch = batch.with_old_logprobs(backend.logprobs(batch))
    minibatches = list(batch.minibatches(2))
    return batch.old_logprobs, [backend.update(minibatches[k % 2], 1e-2) for k in range(updates)]


def packs_per_rank(minibatch):
    train = cluster_recipe(2).train
    parts = shares(minibatch, 2, train)
    return [len(microbatch_bounds(part.rows.lengths, train.tokens_per_microbatch)) for part in parts]


def weights_of(backend, folder):
    folder.mkdir()
    backend.save(folder)
    return read_policy_tensors(folder)


def test_two_ranks_learn_what_one_process_learns(synced, tied_folder, tmp_path):
    local = local_backend(synced.recipe, tied_folder)
    batch = ragged_batch()
    assert any(one != other for one, other in (packs_per_rank(each) for each in batch.minibatches(2)))
    old, metrics = learn(synced, batch)
    local_old, local_metrics = learn(local, batch)
    np.testing.assert_allclose(old, local_old, atol=1e-5)
    for mine, theirs in zip(metrics, local_metrics, strict=True):
        close_enough(mine, theirs)
    trained = weights_of(synced, tmp_path / "saved")
    parameters = dict(local.policy.named_parameters())
    assert trained.keys() == parameters.keys()
    for name, tensor in trained.items():
        # AdamW magnifies rounding where a gradient is nearly 0; a step is 1e-2.
        torch.testing.assert_close(tensor, parameters[name].detach(), rtol=0, atol=1e-4)


def test_after_every_sync_the_engine_samples_from_the_policy_tied_head_included(synced, tmp_path):
    for version in (1, 2):
        learn(synced, ragged_batch())
        metrics = synced.sync_weights(version)
        assert metrics["sync/probe_max"] <= 1e-4
        groups = list(synced.generate([*requests(4), long_request()]))
        assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {version}
        policy = tied_model(1)
        state = weights_of(synced, tmp_path / str(version))
        policy.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
        assert_sampled_from(policy, groups)


def test_an_engine_with_old_weights_stops_the_run_and_both_numbers_are_said(synced, monkeypatch):
    learn(synced, ragged_batch())
    monkeypatch.setattr(synced, "_send", lambda *arguments, **options: None)
    with pytest.raises(StaleWeights, match=r"differ by [\d.e-]+ in the mean and [\d.e-]+ at most") as stale:
        synced.sync_weights(7)
    assert "sync of step 7, engine 0" in stale.value.message


def test_a_tensor_that_gets_lost_on_the_way_is_named_and_the_next_sync_is_whole_again(synced, ray_session):
    def lose(rank):
        whole = rank.sync.weights
        rank.sync.weights = lambda: (each for each in whole() if each[0] != "model.layers.1.self_attn.k_proj.weight")

    def find(rank):
        del rank.sync.weights

    learn(synced, ragged_batch(), updates=1)
    ray_session.get([rank.__ray_call__.remote(lose) for rank in synced._ranks])
    # The queries' 64 and the values' 32 rows of 64 are there, the keys' 32 are not.
    fused = r"model.layers.1.self_attn.qkv_proj \(6144 of 8192 elements\)"
    with pytest.raises(StaleWeights, match=f"vLLM replica 0: weights that did not arrive: {fused};"):
        synced.sync_weights(8)
    ray_session.get([rank.__ray_call__.remote(find) for rank in synced._ranks])
    synced._engines.call("finish_weight_update", "0")  # for vLLM that update is still under way
    assert synced.sync_weights(8)["sync/probe_max"] <= 1e-4


def test_nothing_is_sent_while_nothing_has_changed(synced, monkeypatch):
    monkeypatch.setattr(synced, "_send", lambda *arguments, **options: pytest.fail("sent"))
    assert synced.sync_weights(0) == {}


def test_groups_come_in_the_order_of_submission_and_do_not_depend_on_their_company(synced):
    first = synced.generate(requests(3))
    second = synced.generate(requests(2, first=3))
    groups = [*first, *second]
    assert [group.index for group in groups] == [0, 1, 2, 3, 4]
    alone = [group for request in requests(5) for group in synced.generate([request])]
    assert same_rollouts(groups, alone)


def test_a_step_that_is_given_up_leaves_nothing_under_way(synced):
    stream = synced.generate([*requests(6), long_request()])
    next(stream)
    stream.close()
    learn(synced, ragged_batch(), updates=1)
    time.sleep(3)  # giving up is a message
    synced.sync_weights(1)


def test_a_checkpoint_goes_on_bit_for_bit_and_in_one_process_too(synced, tied_folder, tmp_path):
    batch = ragged_batch()
    learn(synced, batch)
    synced.save(tmp_path)
    _, after = learn(synced, batch)
    synced.load(tmp_path)
    assert learn(synced, batch)[1] == after
    local = local_backend(synced.recipe, tied_folder)
    local.load(tmp_path)
    for mine, theirs in zip(learn(local, batch)[1], after, strict=True):
        close_enough(mine, theirs)


def test_one_rank_with_adapters_learns_what_the_local_backend_learns(tied_folder, ray_session, tmp_path):
    recipe = cluster_recipe(1, {"placement": "colocated"}, lora=LORA)
    with running(recipe, tied_folder) as backend:
        local = local_backend(recipe, tied_folder)
        backend.sync_weights(0)
        batch = ragged_batch()
        old, metrics = learn(backend, batch)
        local_old, local_metrics = learn(local, batch)
        np.testing.assert_allclose(old, local_old, atol=1e-5)
        for mine, theirs in zip(metrics, local_metrics, strict=True):
            close_enough(mine, theirs)
        assert backend.sync_weights(1)["sync/probe_max"] <= 1e-4
        assert {r.policy_version for group in backend.generate(requests(1)) for r in group.rollouts} == {1}
        trained = weights_of(backend, tmp_path / "saved")
        assert all(".lora_" in name for name in trained)
        assert len(trained) == 2 * 2 * len(LORA["targets"])

"""FSDP2 over gloo: the numbers of one process, on any number of ranks and however it is sharded."""

import dataclasses

import numpy as np
import pytest
import torch
from ranks import (
    DENOMINATORS,
    LORA,
    batch_of,
    give_adapters_an_effect,
    gradient,
    gradients_of_everything,
    read_policy_tensors,
    recipe_of,
    start,
    state,
    updates_and_checkpoints,
    variants,
    weights,
)
from tiny import tiny_policy
from transformers import GPT2Config, GPT2LMHeadModel

from dapo_cli.errors import UsageError
from dapo_cli.policy.forward import share_logprobs
from dapo_cli.policy.fsdp import decoder_layers, make_mesh
from dapo_cli.policy.lora import add_adapters
from dapo_cli.policy.model import load_model
from dapo_cli.policy.partition import deal, shares
from dapo_cli.policy.sharded_checkpoint import load_sharded
from dapo_cli.policy.update import accumulate_gradients, make_optimizer, update
from dapo_cli.recipe.schema import Lora

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small model of two weight files in bfloat16 in it, its head tied."""
    folder = tmp_path_factory.mktemp("ranks")
    policy = tiny_policy()
    policy.config.tie_word_embeddings = True
    policy.tie_weights()
    policy.bfloat16().save_pretrained(folder / "model", max_shard_size="8KB")
    assert len(list((folder / "model").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def policy(folder):
    return load_model(str(folder / "model"), recipe_of().model, torch.device("cpu"))


def assert_close(found, expected, tolerance=1e-5):
    assert float((found - expected).norm() / expected.norm()) <= tolerance


@pytest.fixture(scope="module", params=[1, 2, 3])
def everything(request, folder):
    return request.param, start(request.param, gradients_of_everything, folder)


def test_weights_are_read_into_shards_as_transformers_reads_them(everything, policy):
    _, found = everything
    expected = policy.state_dict()
    assert found["weights"].keys() == expected.keys()
    assert all(torch.equal(found["weights"][name], tensor) for name, tensor in expected.items())


def test_log_probs_need_the_buffers_that_no_checkpoint_holds(everything, policy):
    ranks, found = everything
    recipe, batch = recipe_of(), batch_of("many")
    own = shares(dataclasses.replace(batch).take(deal(batch.lengths, ranks)[0]), 1, recipe.train)[0]
    np.testing.assert_allclose(found["logprobs"], share_logprobs(policy, own, recipe), atol=1e-5)


@pytest.mark.parametrize("size", ["many", "few"])
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_gradients_and_metrics_are_those_of_one_process(everything, policy, size, denominator):
    _, found = everything
    recipe = recipe_of(denominator)
    expected = accumulate_gradients(policy, shares(batch_of(size), 1, recipe.train)[0], recipe)
    metrics, grads = found[size, denominator]
    assert_close(grads, gradient(policy))
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def on_four_ranks(folder):
    return start(4, variants, folder)


@pytest.mark.parametrize("variant", ["hybrid", "offload", "recompute"])
def test_ways_to_shard_change_no_gradient(on_four_ranks, policy, variant):
    recipe = recipe_of()
    accumulate_gradients(policy, shares(batch_of("many"), 1, recipe.train)[0], recipe)
    assert_close(on_four_ranks[variant]["gradient"], gradient(policy))
    assert on_four_ranks[variant]["trained"] == on_four_ranks[variant]["moments"] == {"torch.float32"}


def test_bfloat16_computes_over_float32_masters_and_moments(on_four_ranks, policy):
    found, recipe = on_four_ranks["bfloat16"], recipe_of()
    accumulate_gradients(policy, shares(batch_of("many"), 1, recipe.train)[0], recipe)
    exact = gradient(policy)
    off = float((found["gradient"] - exact).norm() / exact.norm())
    assert 1e-4 < off < 5e-2
    assert found["trained"] == found["moments"] == {"torch.float32"}


def test_bfloat16_gradients_are_summed_over_ranks_in_float32(on_four_ranks):
    grads = on_four_ranks["bfloat16 of one microbatch"]
    nonzero = grads[grads != 0]
    # Each rank's gradient has 8 significant bits; their sum in float32 nearly always has more.
    assert (nonzero != nonzero.bfloat16().float()).float().mean() > 0.5


@pytest.mark.parametrize("variant", ["lora", "lora bfloat16"])
def test_only_adapters_are_trained_and_only_they_have_moments(on_four_ranks, policy, variant):
    found = on_four_ranks[variant]
    dtype = "bfloat16" if "bfloat16" in variant else "float32"
    # A is 2 x 16 or 2 x 32, B 16 x 2: per layer 2 * (16 + 16) + 2 * (32 + 16) = 160, and there are 2 layers.
    assert found["moment numbers"] == 2 * 160
    assert found["trained"] == found["moments"] == {"torch.float32"}
    assert found["frozen"] == {f"torch.{dtype}"}
    if dtype == "float32":
        recipe = recipe_of(model={"lora": LORA})
        add_adapters(policy, Lora.model_validate(LORA, strict=False), recipe.rollout.seed, dtype)
        give_adapters_an_effect(policy)
        share = shares(batch_of("many"), 1, recipe.train)[0]
        accumulate_gradients(policy, share, recipe)
        assert_close(found["gradient"], gradient(policy))
        update(policy, make_optimizer(policy, recipe.train), share, 1e-2, recipe)
        for name, tensor in weights(policy).items():
            torch.testing.assert_close(found["weights"][name], tensor, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["hybrid", "offload", "bfloat16", "lora", "lora bfloat16"])
def test_however_it_is_sharded_a_checkpoint_holds_what_was_trained_when_the_save_began(on_four_ranks, folder, variant):
    found, saved = read_policy_tensors(folder / variant), on_four_ranks[variant]["saved"]
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())


@pytest.fixture(scope="module")
def of_two_ranks(folder):
    return start(2, updates_and_checkpoints, folder, None)


def test_three_clipped_updates_give_the_weights_and_moments_of_one_process(of_two_ranks, policy):
    recipe = recipe_of()
    optimizer = make_optimizer(policy, recipe.train)
    for _ in range(3):
        metrics = update(policy, optimizer, shares(batch_of("many"), 1, recipe.train)[0], 1e-2, recipe)
        # Adam divides by the gradient's size: moments tell a clipped gradient from another, weights hardly do.
        assert metrics["update/grad_norm"] > recipe.train.max_grad_norm
    for key, tensor in state(policy, optimizer).items():
        if key.startswith("weights."):
            torch.testing.assert_close(of_two_ranks["before"][key], tensor, rtol=0, atol=1e-4)
        else:
            assert_close(of_two_ranks["before"][key], tensor, 1e-2)


def test_a_loss_that_is_not_finite_on_one_rank_skips_the_update_on_all(of_two_ranks):
    assert of_two_ranks["skipped"]["update/skipped_count"] == 1.0
    assert of_two_ranks["unchanged"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_of_two_ranks_goes_on_with_any_number(of_two_ranks, folder, ranks):
    found = start(ranks, updates_and_checkpoints, folder, folder / "sync-2")
    assert found["before"].keys() == of_two_ranks["before"].keys()
    assert all(torch.equal(found["before"][key], tensor) for key, tensor in of_two_ranks["before"].items())
    assert found["next"] == pytest.approx(of_two_ranks["next"], rel=1e-5, abs=1e-7)


def test_one_process_reads_it_too_and_both_ways_to_save_hold_the_same(of_two_ranks, folder, policy):
    recipe = recipe_of()
    optimizer = make_optimizer(policy, recipe.train)
    for way in ("sync", "async"):
        load_sharded(folder / f"{way}-2", policy, optimizer, recipe.train)
        found = state(policy, optimizer)
        assert found.keys() == of_two_ranks["before"].keys()
        assert all(torch.equal(of_two_ranks["before"][key], tensor) for key, tensor in found.items())
    found = update(policy, optimizer, shares(batch_of("many"), 1, recipe.train)[0], 1e-2, recipe)
    assert found == pytest.approx(of_two_ranks["next"], rel=1e-5, abs=1e-7)
    saved = read_policy_tensors(folder / "sync-2")
    assert "lm_head.weight" not in saved
    assert all(torch.equal(of_two_ranks["before"][f"weights.{name}"], tensor) for name, tensor in saved.items())


def test_decoder_layers_are_found_whatever_their_list_is_called():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=3, n_head=2))
    assert decoder_layers(gpt2) is gpt2.transformer.h
    policy = tiny_policy()
    assert decoder_layers(policy) is policy.model.layers
    policy.model.layers = torch.nn.Sequential(*policy.model.layers)
    with pytest.raises(UsageError, match="LlamaForCausalLM has no list of 2 decoder layers"):
        decoder_layers(policy)


def test_shard_groups_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ValueError, match="4 ranks do not divide into shard groups of 3"):
        make_mesh(4, 3, "cpu")

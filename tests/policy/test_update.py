"""The optimizer update: exact against an independent implementation, and blind to how the work is cut."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import fixed_batch, tiny_policy, tiny_recipe
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.backend.local import LocalBackend
from dapo_cli.policy import attention
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import response_logprobs
from dapo_cli.policy.partition import shares
from dapo_cli.policy.update import accumulate_gradients, make_optimizer, update

DENOMINATORS = ["minibatch", "group", "sequence", "microbatch"]


def whole(batch, recipe):
    """The minibatch as one rank's share."""
    return shares(batch, 1, recipe.train)[0]


def gradients(recipe, batch):
    policy = tiny_policy()
    metrics = accumulate_gradients(policy, whole(batch, recipe), recipe)
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]), metrics


def train_section(denominator, **keys):
    emulated = {"ranks": 2, "tokens_per_microbatch": 40} if denominator == "microbatch" else None
    return {"loss_denominator": denominator, "emulated_partition": emulated, **keys}


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("budget", [16, 40, 100, 10_000])
def test_gradient_and_metrics_do_not_depend_on_the_micro_batch_split(denominator, budget):
    batch = fixed_batch()
    uncut, uncut_metrics = gradients(
        tiny_recipe(train=train_section(denominator, tokens_per_microbatch=100_000)), batch
    )
    split, metrics = gradients(tiny_recipe(train=train_section(denominator, tokens_per_microbatch=budget)), batch)
    assert float((split - uncut).norm() / uncut.norm()) < 1e-5
    assert metrics == pytest.approx(uncut_metrics, rel=1e-4, abs=1e-6)


def test_gradient_does_not_depend_on_packing_or_on_the_logits_chunk():
    batch = fixed_batch()
    recipe = tiny_recipe(train={"tokens_per_microbatch": 10_000, "logits_chunk_tokens": 7})
    chunked, _ = gradients(recipe, batch)
    expected = torch.zeros_like(chunked)
    # One forward per rollout, through the model's own padded-free eager attention, full logits.
    policy = tiny_policy()
    policy.set_attn_implementation("eager")
    num_loss_tokens = int(batch.response_lengths[batch.in_loss].sum())
    loss = torch.zeros(())
    for row in range(len(batch)):
        one = batch.rows(row, row + 1)
        ids = torch.from_numpy(one.token_ids.astype(np.int64))
        logprobs = torch.log_softmax(policy(input_ids=ids[None]).logits[0].float(), dim=-1)
        start = int(one.prompt_lengths[0])
        chosen = logprobs[start - 1 : -1].gather(1, ids[start:, None])[:, 0]
        ratio = (chosen - torch.from_numpy(one.old_logprobs)).exp()
        advantage = float(one.advantages[0])
        worst = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        if advantage < 0:
            worst = worst.clamp(max=-advantage * 10.0)
        loss = loss + float(one.in_loss[0]) * worst.sum() / num_loss_tokens
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    assert float((chunked - expected).norm() / expected.norm()) < 1e-5


def test_an_update_leaves_its_minibatch_as_it_was():
    batch = fixed_batch()
    before = {field.name: getattr(batch, field.name).copy() for field in fields(batch)}
    policy = tiny_policy()
    recipe = tiny_recipe()
    update(policy, make_optimizer(policy, recipe.train), whole(batch, recipe), 1e-2, recipe)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(batch, name), array, err_msg=name)


def test_a_non_finite_gradient_changes_nothing_and_is_counted():
    batch = fixed_batch()
    poisoned = batch.with_old_logprobs(np.full_like(batch.old_logprobs, np.nan))
    policy = tiny_policy()
    recipe = tiny_recipe()
    optimizer = make_optimizer(policy, recipe.train)
    update(policy, optimizer, whole(batch, recipe), 1e-2, recipe)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]

    metrics = update(policy, optimizer, whole(poisoned, recipe), 1e-2, recipe)

    assert metrics["update/skipped_count"] == 1.0
    assert all(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    after = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(torch.equal(old, new) for old, new in zip(moments, after, strict=True))
    assert update(policy, optimizer, whole(batch, recipe), 1e-2, recipe)["update/skipped_count"] == 0.0


def test_a_minibatch_without_any_loss_moves_the_weights_by_decay_only():
    batch = fixed_batch()
    masked = type(batch)(**{f.name: getattr(batch, f.name) for f in fields(batch)} | {"in_loss": np.zeros(16, bool)})
    policy = tiny_policy()
    recipe = tiny_recipe()
    metrics = update(policy, make_optimizer(policy, recipe.train), whole(masked, recipe), 1e-2, recipe)
    assert metrics["loss/policy"] == 0.0
    assert metrics["update/grad_norm"] == 0.0


def test_the_first_update_of_a_step_has_ratio_one_and_later_ones_clip():
    recipe = tiny_recipe(train={"tokens_per_microbatch": 40, "learning_rate": 0.05})
    backend = LocalBackend.__new__(LocalBackend)
    backend.recipe, backend.policy, backend.engine = recipe, tiny_policy(), None
    backend.optimizer = make_optimizer(backend.policy, recipe.train)
    batch = fixed_batch()
    batch = batch.with_old_logprobs(backend.logprobs(batch))
    first, second = (backend.update(minibatch, 0.05) for minibatch in batch.minibatches(2))
    assert first["update/kl_old_new"] == 0.0
    assert first["update/clip_fraction_low"] == first["update/clip_fraction_high"] == 0.0
    assert second["update/clip_fraction_low"] + second["update/clip_fraction_high"] > 0.1


def test_the_probabilities_of_tokens_clipped_high_are_those_of_the_policy_that_is_trained():
    recipe, batch = tiny_recipe(), fixed_batch()
    metrics = update(tiny_policy(), make_optimizer(tiny_policy(), recipe.train), whole(batch, recipe), 1e-2, recipe)
    logprobs = response_logprobs(tiny_policy(), batch, recipe)[0].detach()
    advantages = torch.from_numpy(np.repeat(batch.advantages, batch.response_lengths))
    clipped = (advantages > 0) & ((logprobs - torch.from_numpy(batch.old_logprobs)).exp() > 1.28)
    assert clipped.any()
    assert metrics["update/clipped_high_probability_mean"] == pytest.approx(float(logprobs.exp()[clipped].mean()))
    assert metrics["update/clipped_high_probability_max"] == pytest.approx(float(logprobs.exp()[clipped].max()))


def test_temperature_divides_the_logits_of_the_trainer():
    batch = fixed_batch(num_groups=1)
    cool, _ = response_logprobs(tiny_policy(), batch, tiny_recipe(rollout={"temperature": 0.5}))
    sharp, _ = response_logprobs(sharpened(2.0), batch, tiny_recipe())
    torch.testing.assert_close(cool, sharp)


def sharpened(factor):
    policy = tiny_policy()
    with torch.no_grad():
        policy.lm_head.weight *= factor
    return policy


def reference_case(reference, tokens_per_microbatch):
    """The model, rollouts and recipe of the recorded updates."""
    attention.register()
    config = LlamaConfig(**reference["model"])
    config._attn_implementation = attention.NAME
    policy = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            values = torch.tensor(reference["initial_parameters_1024ths"][name], dtype=torch.float32) / 1024
            parameter.copy_(values.view_as(parameter))
    rollouts = reference["rollouts"]
    rewards = np.array([rollout["reward"] for rollout in rollouts]).reshape(4, 4)
    lengths = np.array([len(rollout["token_ids"]) for rollout in rollouts], dtype=np.int32)
    prompts = np.array([rollout["prompt_length"] for rollout in rollouts], dtype=np.int32)
    old = np.concatenate([rollout["old_logprobs"] for rollout in rollouts]).astype(np.float32)
    batch = Batch(
        token_ids=np.concatenate([rollout["token_ids"] for rollout in rollouts]).astype(np.int32),
        prompt_lengths=prompts,
        response_lengths=lengths - prompts,
        groups=np.array([rollout["group"] for rollout in rollouts], dtype=np.int32),
        advantages=group_advantages(rewards, reference["train"]["normalize"]).reshape(-1),
        in_loss=np.ones(16, dtype=bool),
        rollout_logprobs=old,
        old_logprobs=old,
    )
    train = {k: v for k, v in reference["train"].items() if k not in ("updates", "temperature", "normalize")}
    return policy, batch, tiny_recipe(train=train | {"tokens_per_microbatch": tokens_per_microbatch})


@pytest.mark.parametrize("tokens_per_microbatch", [24, 64, 4096])
def test_three_adamw_updates_equal_an_independent_implementation(tokens_per_microbatch):
    """Numbers and model by tests/policy/reference_updates/generate.py: stock transformers, padding, float64."""
    reference = json.loads((Path(__file__).parent / "reference_updates" / "three_updates.json").read_text())
    policy, batch, recipe = reference_case(reference, tokens_per_microbatch)
    optimizer = make_optimizer(policy, recipe.train)
    for expected in reference["updates"]:
        metrics = update(policy, optimizer, whole(batch, recipe), recipe.train.learning_rate, recipe)
        assert metrics["loss/policy"] == pytest.approx(expected["loss"], abs=1e-6)
        assert metrics["update/grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    for name, parameter in policy.named_parameters():
        recorded = torch.tensor(reference["final_parameters"][name]).reshape(parameter.shape)
        torch.testing.assert_close(parameter.detach(), recorded, atol=1e-6, rtol=0, msg=name)

"""LoRA: only adapters are trained, they start without effect, and they merge to the same model."""

import copy
import json
import math
import sys

import numpy as np
import pytest
import torch
from tiny import fixed_batch, tiny_policy, tiny_recipe

from dapo_cli.errors import UsageError
from dapo_cli.policy import lora
from dapo_cli.policy.forward import response_logprobs
from dapo_cli.policy.model import prepare_policy
from dapo_cli.policy.partition import shares
from dapo_cli.policy.update import accumulate_gradients, make_optimizer, update
from dapo_cli.policy.weights import base_name, is_adapter, policy_weights, weight_shapes
from dapo_cli.recipe.schema import Lora

LORA = Lora(rank=2, alpha=8.0, targets=("q_proj", "down_proj"))
# Two layers; q_proj 16 -> 16, down_proj 32 -> 16: rank x (in + out) = 2 x (32 + 48) in each.
NUM_ADAPTER_PARAMETERS = 2 * (2 * 32 + 2 * 48)


def adapted(dtype="float32", settings=LORA, seed=0):
    policy = tiny_policy()
    lora.add_adapters(policy, settings, seed, dtype)
    return policy


def give_effect(policy):
    generator = torch.Generator().manual_seed(5)
    for name, tensor in lora.trained_tensors(policy).items():
        if "lora_B" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
    return policy


def logits(policy):
    policy.set_attn_implementation("eager")
    with torch.no_grad():
        return policy(input_ids=torch.arange(1, 13)[None]).logits[0].float()


def adapters(policy):
    return {name: tensor.clone() for name, tensor in policy.state_dict().items() if is_adapter(name)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_adapters_are_trained_and_only_they_stay_in_float32(dtype):
    policy = adapted(dtype)
    for name, parameter in policy.named_parameters():
        assert parameter.requires_grad == is_adapter(name)
        assert parameter.dtype == (torch.float32 if is_adapter(name) else getattr(torch, dtype))
    trained = lora.trained_tensors(policy)
    assert sum(tensor.numel() for tensor in trained.values()) == NUM_ADAPTER_PARAMETERS
    assert {base_name(name).split(".")[-4] for name in trained} == {"q_proj", "down_proj"}


def test_new_adapters_have_no_effect_and_a_has_pefts_distribution():
    policy = adapted()
    assert torch.equal(logits(policy), logits(tiny_policy()))
    down = policy.model.layers[0].mlp.down_proj
    # Kaiming uniform with a = sqrt(5): bound sqrt(6 / (1 + 5) / 32 inputs)
    bound = math.sqrt(1 / 32)
    assert 0.8 * bound < down.lora_A.default.weight.abs().max() <= bound
    assert not down.lora_B.default.weight.any()


def test_every_start_has_the_same_adapters_and_every_layer_its_own():
    one = adapters(adapted())
    torch.manual_seed(123)
    assert all(torch.equal(tensor, one[name]) for name, tensor in adapters(adapted()).items())
    first, second = (one[f"model.layers.{layer}.self_attn.q_proj.lora_A.default.weight"] for layer in (0, 1))
    assert not torch.equal(first, second)
    other = adapters(adapted(seed=1))
    assert not torch.equal(other["model.layers.0.self_attn.q_proj.lora_A.default.weight"], first)


def test_adapters_made_without_memory_get_the_same_values_later():
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        empty = LlamaForCausalLM(tiny_policy().config)
    lora.add_adapters(empty, LORA, 0, "bfloat16")
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    empty.to_empty(device="cpu")
    lora.initialise_adapters(empty, 0)
    expected = adapters(adapted())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in adapters(empty).items())


def test_a_target_that_is_nowhere_is_refused_with_what_there_is():
    with pytest.raises(UsageError, match=r"model\.lora\.targets: W_pack: no such linear layer") as caught:
        adapted(settings=Lora(targets=("q_proj", "W_pack")))
    for name in ("down_proj", "k_proj", "lm_head", "up_proj"):
        assert name in caught.value.hint


def test_a_tied_head_cannot_have_an_adapter_and_an_untied_can():
    tied = tiny_policy()
    tied.config.tie_word_embeddings = True
    with pytest.raises(UsageError, match=r"model\.lora\.targets: lm_head: the head is tied"):
        lora.add_adapters(tied, Lora(targets=("lm_head",)), 0, "float32")
    policy = give_effect(adapted(settings=Lora(rank=2, targets=("lm_head",))))
    merged = copy.deepcopy(policy)
    lora.merge_adapters(merged)
    torch.testing.assert_close(logits(policy), logits(merged), atol=1e-5, rtol=0)
    assert (logits(policy) - logits(tiny_policy())).abs().max() > 1e-2


def test_without_peft_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match="needs the Python package peft") as caught:
        adapted()
    assert caught.value.hint == "pip install peft"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_reach_every_adapter_and_nothing_else(dtype, recompute):
    recipe = tiny_recipe(model={"path": "toy", "dtype": dtype, "activation_checkpointing": recompute})
    policy = tiny_policy()
    prepare_policy(policy, recipe.model)
    lora.add_adapters(policy, LORA, 0, dtype)
    give_effect(policy)
    assert policy.is_gradient_checkpointing == recompute
    accumulate_gradients(policy, shares(fixed_batch(), 1, recipe.train)[0], recipe)
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == is_adapter(name), name


def test_adapters_compute_what_their_merged_weights_do():
    """The packed forward of the update, gradients included: dL/dB = scale x dL/dW A^T."""
    recipe = tiny_recipe()
    policy = give_effect(adapted())
    merged = copy.deepcopy(policy)
    lora.merge_adapters(merged)
    assert {type(module).__module__.split(".")[0] for module in merged.modules()} <= {"torch", "transformers"}
    merged.requires_grad_(True)
    batch = fixed_batch()
    torch.testing.assert_close(
        response_logprobs(policy, batch, recipe)[0], response_logprobs(merged, batch, recipe)[0], atol=1e-5, rtol=0
    )
    for model in (policy, merged):
        accumulate_gradients(model, shares(batch, 1, recipe.train)[0], recipe)
    layer, whole = (model.model.layers[1].self_attn.q_proj for model in (policy, merged))
    expected = 8.0 / 2 * whole.weight.grad @ layer.lora_A.default.weight.T
    torch.testing.assert_close(layer.lora_B.default.weight.grad, expected, atol=1e-6, rtol=1e-4)


def test_the_merged_weight_is_w_plus_alpha_over_rank_b_a():
    policy = give_effect(adapted("bfloat16"))
    layer = policy.model.layers[0].mlp.down_proj
    a, b = layer.lora_A.default.weight, layer.lora_B.default.weight
    merged = lora.merged_weight(layer)
    assert merged.dtype == torch.float32
    torch.testing.assert_close(merged, layer.base_layer.weight.float() + 4.0 * (b @ a))
    assert not torch.equal(merged, layer.base_layer.weight.float())


def test_weights_for_an_engine_bear_the_names_of_the_base_model():
    policy, plain = give_effect(adapted()), tiny_policy().state_dict()
    sent = dict(policy_weights(policy, torch.bfloat16))
    assert list(sent) == list(plain) == [shape.name for shape in weight_shapes(policy, torch.bfloat16)]
    name = "model.layers.0.mlp.down_proj.weight"
    expected = lora.merged_weight(policy.model.layers[0].mlp.down_proj).bfloat16()
    assert torch.equal(sent[name], expected)
    base = dict(policy_weights(policy, torch.float32, merged=False))
    assert all(torch.equal(tensor, plain[name]) for name, tensor in base.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peft_loads_the_adapter_folder_to_the_same_model(tmp_path, dtype):
    from peft import PeftModel

    policy = give_effect(adapted(dtype))
    lora.save_adapter(policy, LORA, tmp_path / "adapter", "org/base")
    base = tiny_policy()
    for parameter in base.parameters():  # not the rotary frequencies
        parameter.data = parameter.data.to(getattr(torch, dtype))
    base.set_attn_implementation("eager")
    with torch.no_grad():
        before = base(input_ids=torch.arange(1, 13)[None]).logits[0].float()
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        after = loaded(input_ids=torch.arange(1, 13)[None]).logits[0].float()
    assert torch.equal(after, logits(policy))
    assert not torch.allclose(before, after, atol=1e-2)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    read_by_vllm = {key: config[key] for key in ("r", "lora_alpha", "target_modules", "bias", "use_rslora", "use_dora")}
    assert read_by_vllm == {
        "r": 2,
        "lora_alpha": 8.0,
        "target_modules": ["down_proj", "q_proj"],
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
    }
    assert (config["base_model_name_or_path"], config["inference_mode"]) == ("org/base", True)


def test_adapters_can_be_taken_off_again():
    policy = give_effect(adapted())
    lora.remove_adapters(policy)
    assert policy.state_dict().keys() == tiny_policy().state_dict().keys()
    assert torch.equal(logits(policy), logits(tiny_policy()))


def test_the_optimizer_holds_two_float32_moments_of_adapters_alone():
    recipe = tiny_recipe()

    def state_bytes(policy):
        optimizer = make_optimizer(policy, recipe.train)
        update(policy, optimizer, shares(fixed_batch(), 1, recipe.train)[0], 1e-3, recipe)
        return sum(state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))

    full = tiny_policy()
    # Embeddings and head 2 x 512, two layers of 768 + 1536 + 32, the last norm 16: 5712; 8 bytes each.
    assert state_bytes(full) == 2 * 4 * 5712
    assert lora.trainable_summary(full) == "all 5.71k parameters trained, optimizer state 45.7kB"
    policy = adapted("bfloat16")
    assert state_bytes(policy) == 2 * 4 * NUM_ADAPTER_PARAMETERS == 2560
    assert lora.trainable_summary(policy).startswith("320 of ")
    assert lora.trainable_summary(policy).endswith("parameters trained, optimizer state 2.56kB")


def test_tensors_of_other_adapters_are_refused():
    policy = adapted()
    state = {name: tensor + 1 for name, tensor in lora.trained_tensors(policy).items()}
    lora.load_trained_tensors(policy, state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in lora.trained_tensors(policy).items())
    name = next(iter(state))
    with pytest.raises(RuntimeError, match=name):
        lora.load_trained_tensors(policy, {key: value for key, value in state.items() if key != name})
    with pytest.raises(RuntimeError, match=name):
        lora.load_trained_tensors(policy, state | {name: torch.zeros(3, 3)})
    with pytest.raises(RuntimeError, match="lora_C"):
        lora.load_trained_tensors(policy, state | {"lora_C": torch.zeros(1)})


def test_updates_lower_the_loss_of_a_fixed_batch():
    recipe = tiny_recipe(model={"path": "toy", "dtype": "bfloat16"})
    policy = adapted("bfloat16")
    share = shares(fixed_batch(), 1, recipe.train)[0]
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    optimizer = make_optimizer(policy, recipe.train)
    losses = [update(policy, optimizer, share, 1e-2, recipe)["loss/policy"] for _ in range(6)]
    assert np.all(np.diff(losses[1:]) < 0)  # the first update moves B alone: A learns once B is not zero
    assert losses[-1] < losses[0] - 1e-3
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]) != is_adapter(name), name

"""What is sent to an engine: every tensor of the checkpoint by its name, whole, tied heads included."""

import pytest
import torch
from tiny import tiny_policy

from dapo_cli.policy import lora
from dapo_cli.policy.weights import base_name, is_adapter, policy_weights, weight_shapes
from dapo_cli.recipe.schema import Lora

LORA = Lora(rank=2, alpha=8.0, targets=("q_proj", "down_proj"))
ADAPTED = "model.layers.1.self_attn.q_proj"


def policy_of(kind):
    policy = tiny_policy()
    if kind == "tied":
        policy.config.tie_word_embeddings = True
        policy.tie_weights()
    if kind == "lora":
        lora.add_adapters(policy, LORA, 0, "float32")
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.constant_(parameter, 0.25)
    return policy


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_every_tensor_of_the_checkpoint_is_sent_once_a_tied_head_too(kind):
    policy = policy_of(kind)
    sent = list(policy_weights(policy, torch.float32))
    state = policy.state_dict()
    assert [name for name, _ in sent] == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in sent)
    assert ("lm_head.weight" in dict(policy.named_parameters())) == (kind == "untied")
    assert torch.equal(dict(sent)["lm_head.weight"], dict(sent)["model.embed_tokens.weight"]) == (kind == "tied")


def test_layers_come_one_after_the_other_because_the_engine_reloads_them_so():
    layers = [int(name.split(".")[2]) for name, _ in policy_weights(tiny_policy(), torch.float32) if ".layers." in name]
    assert layers == sorted(layers)
    assert set(layers) == {0, 1}


@pytest.mark.parametrize("kind", ["tied", "untied", "lora"])
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_said_beforehand_is_what_is_sent(kind, merged, dtype):
    policy = policy_of(kind)
    # A whole number, which keeps its type, and a buffer that no checkpoint holds.
    policy.model.register_buffer("counted", torch.tensor([3, 4]))
    policy.model.register_buffer("passing", torch.ones(2), persistent=False)
    sent = list(policy_weights(policy, dtype, merged=merged))
    assert [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sent] == list(weight_shapes(policy, dtype))
    assert dict(sent)["model.counted"].tolist() == [3, 4]
    assert "model.passing" not in dict(sent)
    assert not any(tensor.requires_grad for _, tensor in sent)


def test_an_adapter_is_added_to_its_weight_before_rounding_or_left_out():
    policy, plain = policy_of("lora"), tiny_policy().state_dict()
    layer = policy.get_submodule(ADAPTED)
    # alpha / rank = 4 and B = 1/4 everywhere: each row of W grows by the sum of the rows of A.
    expected = plain[f"{ADAPTED}.weight"] + layer.lora_A.default.weight.detach().sum(0)
    merged, base = (dict(policy_weights(policy, torch.float32, merged=merged)) for merged in (True, False))
    torch.testing.assert_close(merged[f"{ADAPTED}.weight"], expected, rtol=0, atol=1e-6)
    rounded = dict(policy_weights(policy, torch.bfloat16))[f"{ADAPTED}.weight"]
    assert torch.equal(rounded, merged[f"{ADAPTED}.weight"].bfloat16())
    assert merged.keys() == base.keys() == plain.keys()
    assert all(torch.equal(base[name], tensor) for name, tensor in plain.items())


def test_offloaded_weights_are_brought_to_where_the_policy_computes():
    policy = tiny_policy()
    policy.compute_device = torch.device("meta")  # stands for a GPU
    assert {tensor.device.type for _, tensor in policy_weights(policy, torch.bfloat16)} == {"meta"}
    assert {parameter.device.type for parameter in policy.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("name", "base", "adapter"),
    [
        ("model.layers.0.mlp.down_proj.base_layer.weight", "model.layers.0.mlp.down_proj.weight", False),
        ("model.layers.0.mlp.down_proj.base_layer.bias", "model.layers.0.mlp.down_proj.bias", False),
        ("model.layers.0.mlp.down_proj.lora_B.default.weight", None, True),
        ("model.norm.weight", "model.norm.weight", False),
    ],
)
def test_names_are_those_of_the_base_model(name, base, adapter):
    assert is_adapter(name) == adapter
    if base is not None:
        assert base_name(name) == base

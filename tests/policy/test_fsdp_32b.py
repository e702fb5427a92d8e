"""The 32B recipe on 128 ranks, as far as tensors without memory go: our sharding, optimizer and checkpoint names."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config

from dapo_cli.policy import fsdp
from dapo_cli.policy.sharded_checkpoint import state_of
from dapo_cli.policy.sharded_load import empty_policy
from dapo_cli.policy.update import make_optimizer
from dapo_cli.policy.weights import weight_shapes
from dapo_cli.recipe.cluster import cluster_shape
from dapo_cli.recipe.loading import load_recipe

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCABULARY = 64, 5120, 27648, 40, 8, 152064
# Per layer: q and o 5120 x 5120, k and v 5120 x 1024, three of 5120 x 27648, biases 5120 + 2 x 1024, two norms of 5120.
LAYER_PARAMETERS = (
    2 * HIDDEN * HIDDEN + 2 * HIDDEN * 1024 + 3 * HIDDEN * INTERMEDIATE + (HIDDEN + 2 * 1024) + 2 * HIDDEN
)
PARAMETERS = LAYERS * LAYER_PARAMETERS + 2 * VOCABULARY * HIDDEN + HIDDEN
TENSORS_PER_LAYER = 12


@pytest.fixture
def recipe():
    return load_recipe("dapo_qwen32b").recipe


@pytest.fixture
def ranks(recipe):
    """The process group of rank 5 of 128, whose collectives do nothing."""
    count = cluster_shape(recipe).policy_ranks
    torch.distributed.init_process_group("fake", rank=5, world_size=count, store=FakeStore())
    yield count
    torch.distributed.destroy_process_group()


def test_the_32b_policy_is_sharded_over_128_ranks_with_float32_masters_and_moments(recipe, ranks, tmp_path):
    Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(tmp_path)
    policy = empty_policy(tmp_path, recipe)
    assert sum(each.numel() for each in policy.parameters()) == PARAMETERS == 32_763_876_352
    without_offload = recipe.model_copy(update={"backend": recipe.backend.model_copy(update={"offload": ()})})
    fsdp.shard_policy(policy, without_offload, fsdp.make_mesh(ranks, None, "cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        policy.to_empty(device="cpu")
        optimizer = make_optimizer(policy, recipe.train)
        for parameter in policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        mine = sum(each.to_local().numel() for each in policy.parameters())
        state = state_of(policy, optimizer)
        bytes_of_rank = sum(_bytes(each) for each in state.values()) + sum(_bytes(p.grad) for p in policy.parameters())
    # 32.76e9 / 128 = 255.97e6; a dimension that 128 does not divide makes some ranks hold a little less.
    assert 0.99 < mine / (PARAMETERS / ranks) <= 1.01
    # Float32 weights, gradients and two moments: 16 bytes a parameter, 4.1 GB.
    assert bytes_of_rank == pytest.approx(16 * mine, rel=1e-4)
    names = [shape.name for shape in weight_shapes(policy, torch.bfloat16)]
    assert len(names) == len(set(names)) == LAYERS * TENSORS_PER_LAYER + 3
    expected = {f"{kind}.{name}" for kind in ("weights", "exp_avg", "exp_avg_sq", "step") for name in names}
    assert state.keys() == expected
    assert all(isinstance(state[f"exp_avg.{name}"], DTensor) for name in names)
    assert sum(isinstance(module, fsdp.FSDPModule) for module in policy.modules()) == LAYERS + 1


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()

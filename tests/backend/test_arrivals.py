"""Every tensor that an update lacks is found by counting, in bfloat16 too, and no whole update is refused."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm_tiny import NEEDS_VLLM, TOKENIZER, requests, vllm_recipe

from dapo_cli.backend import in_process
from dapo_cli.backend.arrivals import StaleWeights, of_worker, require_complete
from dapo_cli.backend.local import LocalBackend
from dapo_cli.policy.weights import policy_weights

CONFIG = Qwen2Config(
    vocab_size=len(TOKENIZER),  # 113: vLLM pads it to 128
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
    initializer_range=0.2,
    tie_word_embeddings=False,
)
TENSORS = [
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    *(f"model.layers.0.self_attn.{kind}_proj.{what}" for kind in "qkv" for what in ("weight", "bias")),
    "model.layers.0.self_attn.o_proj.weight",
    *(f"model.layers.0.mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.post_attention_layernorm.weight",
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A vLLM engine in bfloat16 beside a policy with biases, fused layers and a padded vocabulary."""
    folder = tmp_path_factory.mktemp("qwen2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(CONFIG).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    prompts = [request.prompt_ids for request in requests(30)]
    backend = LocalBackend(vllm_recipe(dtype="bfloat16"), str(folder), TOKENIZER, prompts, print)
    yield backend.engine
    backend.close()


@pytest.mark.parametrize("lost", TENSORS)
@NEEDS_VLLM[0]
@NEEDS_VLLM[1]
def test_whatever_tensor_is_lost_in_bfloat16_the_sync_fails(engine, monkeypatch, lost):
    def forgetful(policy, dtype, *, merged=True):
        return ((name, tensor) for name, tensor in policy_weights(policy, dtype, merged=merged) if name != lost)

    engine.sync(0)
    engine.weights_changed()
    with monkeypatch.context() as patch:
        patch.setattr(in_process, "policy_weights", forgetful)
        with pytest.raises(StaleWeights, match=r"weights that did not arrive: [^,]*;"):
            engine.sync(1)
    engine.sync(0)


@NEEDS_VLLM[0]
@NEEDS_VLLM[1]
def test_the_list_of_tensors_is_that_of_the_model_and_a_whole_update_passes_in_bfloat16(engine):
    assert {name for name, _ in policy_weights(engine.policy, torch.bfloat16)} == set(TENSORS)
    engine.weights_changed()
    metrics = engine.sync(3)
    # Rounding of bfloat16, and not more than the canary allows.
    assert 1e-4 < metrics["sync/probe_mean"] < engine._limit < 0.5


@NEEDS_VLLM[0]
@NEEDS_VLLM[1]
def test_vllms_own_transports_are_made_to_refuse_gaps(monkeypatch):
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    from dapo_cli.backend import message_transfer

    registry = WeightTransferEngineFactory._registry
    assert issubclass(registry["whole_nccl"](), NCCLWeightTransferEngine)
    assert issubclass(registry["whole_ipc"](), IPCWeightTransferEngine)
    calls = []

    class Plain:
        model = "model"

        def finish_weight_update(self):
            calls.append("finished")

    def count(model):
        calls.append(f"counted {model}")
        return ["norm (0 of 8 elements)"]

    monkeypatch.setattr(message_transfer, "unwritten", count)
    with pytest.raises(StaleWeights, match="norm"):
        message_transfer.without_gaps(Plain)().finish_weight_update()
    assert calls == ["counted model", "finished"]


def test_nothing_missing_is_no_error_and_of_much_the_first_is_named():
    require_complete([])
    names = [f"layer {number}" for number in range(10)]
    with pytest.raises(StaleWeights) as stale:
        require_complete(names)
    assert "did not arrive: layer 0, layer 1" in stale.value.message
    assert "layer 7 and 2 more;" in stale.value.message


def test_what_a_worker_raised_is_known_again_by_its_words_and_other_errors_stay_as_they_are():
    with pytest.raises(StaleWeights) as raised:
        require_complete(["model.norm (0 of 64 elements)"])
    words = f"Worker failed with error '{raised.value}', please check the stack trace above"
    found = of_worker(RuntimeError(words))
    assert isinstance(found, StaleWeights)
    assert (found.message, found.hint) == (raised.value.message, raised.value.hint)
    other = RuntimeError("out of memory")
    assert of_worker(other) is other

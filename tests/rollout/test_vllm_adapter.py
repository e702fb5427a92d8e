"""The vllm engine in this process with LoRA adapters: each replaces the one before, over weights that may change."""

import numpy as np
import pytest
from vllm_tiny import (
    NEEDS_VLLM,
    TOKENIZER,
    assert_sampled_from,
    logprobs_of,
    long_request,
    requests,
    sequences_of,
    tied_model,
    vllm_recipe,
    weights,
    with_adapter,
    write_model,
)

from dapo_cli.rollout.vllm_engine import VLLMEngine

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    recipe = vllm_recipe(lora={"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]})
    engine = VLLMEngine(recipe, write_model(tmp_path_factory.mktemp("model")), TOKENIZER, "cpu", print)
    yield engine
    engine.close()


def check(engine, sequences, model):
    for sequence, found in zip(sequences, engine.prompt_logprobs(sequences), strict=True):
        np.testing.assert_allclose(found, logprobs_of(model, sequence), atol=1e-4)


def test_adapters_replace_one_another_and_stay_when_the_weights_below_change(engine, tmp_path):
    engine.load_weights(weights(tied_model(0)))
    sequences = sequences_of(engine.generate([*requests(2), long_request()]))
    check(engine, sequences, tied_model(0))
    for seed in (1, 2):
        folder = tmp_path / f"adapter-{seed}"
        model = with_adapter(tied_model(0), folder, seed)
        engine.set_adapter(folder)
        check(engine, sequences, model)
        # A prompt whose keys and values were cached without this adapter.
        assert_sampled_from(model, engine.generate([*requests(4), long_request()]))
    engine.load_weights(weights(tied_model(5)))
    check(engine, sequences, with_adapter(tied_model(5), tmp_path / "same", 2))


def test_the_adapter_does_not_change_while_rollouts_are_under_way(engine, tmp_path):
    with_adapter(tied_model(0), tmp_path, 1)
    stream = engine.generate(requests(1))
    with pytest.raises(RuntimeError, match="cannot change the adapter while 4 rollouts are under way"):
        engine.set_adapter(tmp_path)
    stream.close()
    engine.set_adapter(tmp_path)

"""What vLLM is asked for: every argument and sampling field stated, and what it would change or cut refused."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from samplings import SAMPLING, changed
from tiny import tiny_recipe
from transformers import LlamaConfig

from dapo_cli.errors import UsageError
from dapo_cli.rollout.vllm_arguments import (
    cache_block_bytes,
    check_request,
    check_sequences,
    cpu_cache_bytes,
    engine_arguments,
    engine_seed,
    sampling_params,
    scoring_params,
)
from dapo_cli.rollout.vllm_environment import set_defaults
from dapo_cli.types import Problem, RolloutRequest

ROLLOUT = {"engine": "vllm", "max_response_tokens": 100, "group_size": 4, "max_concurrent_rollouts": 8}


def recipe(model=None, **rollout):
    return tiny_recipe(
        model={"path": "toy"} | (model or {}),
        prompt={"max_prompt_tokens": 30},
        rollout=ROLLOUT | rollout,
        train={"tokens_per_microbatch": 256},
    )


@pytest.fixture
def vllm():
    set_defaults()
    return pytest.importorskip("vllm")


@pytest.fixture
def folder(tmp_path):
    LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32
    ).save_pretrained(tmp_path)
    return str(tmp_path)


def test_arguments_on_a_gpu_follow_the_recipe():
    arguments = engine_arguments(
        recipe(model={"dtype": "bfloat16"}, tensor_parallel=2, gpu_memory_utilization=0.5, enforce_eager=False),
        "folder",
        device="cuda",
    )
    assert arguments["dtype"] == "bfloat16"
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["distributed_executor_backend"] == "mp"
    assert arguments["gpu_memory_utilization"] == 0.5
    assert arguments["enforce_eager"] is False
    assert arguments["max_model_len"] == 130  # 30 + 100
    assert arguments["max_num_seqs"] == 8
    assert arguments["enable_sleep_mode"] is True
    assert arguments["enable_chunked_prefill"] is True
    assert "kv_cache_memory_bytes" not in arguments


def test_nothing_comes_from_the_checkpoint_or_from_defaults_that_mislead():
    arguments = engine_arguments(recipe(), "folder", device="cuda")
    assert arguments["generation_config"] == "vllm"
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["load_format"] == "dummy"
    assert arguments["enable_prefix_caching"] is True


def test_on_a_cpu_prompts_are_never_cut_and_the_cache_is_what_the_rollouts_need(folder):
    arguments = engine_arguments(recipe(), folder, device="cpu")
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"]
    assert arguments["enable_sleep_mode"] is False
    assert "gpu_memory_utilization" not in arguments
    # A block: 128 tokens x 2 layers x keys and values x 2 heads x 32 wide x 4 bytes = 131,072 bytes.
    # 130 tokens take 2 blocks: 8 rollouts x 2 + 1 = 17 blocks.
    assert arguments["kv_cache_memory_bytes"] == 17 * 131_072


def test_heads_without_a_cpu_kernel_are_refused_before_the_first_forward(tmp_path):
    LlamaConfig(hidden_size=64, num_attention_heads=4).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="attention heads are 16 wide"):
        engine_arguments(recipe(), str(tmp_path), device="cpu")
    engine_arguments(recipe(), str(tmp_path), device="cuda")


@pytest.mark.parametrize(
    ("tensor_parallel", "dtype", "expected"), [(1, "float32", 131_072), (2, "bfloat16", 32_768), (4, "float32", 65_536)]
)
def test_a_worker_holds_its_own_heads_and_at_least_one(folder, tensor_parallel, dtype, expected):
    config = LlamaConfig.from_pretrained(folder)
    assert cache_block_bytes(config, dtype, tensor_parallel) == expected


def test_the_cache_is_bounded_but_holds_one_sequence():
    assert cpu_cache_bytes(2**20, longest_tokens=1280, rollouts=1000) == 4 * 2**30
    assert cpu_cache_bytes(2**30, longest_tokens=1280, rollouts=1000) == 11 * 2**30  # 10 blocks and vLLM's empty one


@pytest.mark.parametrize(("rank", "expected"), [(1, 1), (9, 16), (16, 16), (300, 320)])
def test_adapters_run_in_the_next_rank_vllm_has(rank, expected):
    arguments = engine_arguments(recipe(model={"lora": {"rank": rank, "targets": ["q_proj"]}}), "folder", device="cuda")
    assert arguments["enable_lora"] is True
    assert arguments["max_lora_rank"] == expected
    assert arguments["lora_target_modules"] == ["q_proj"]


def test_merged_adapters_and_no_adapters_are_the_same_to_vllm():
    merged = engine_arguments(recipe(model={"lora": {"sync": "merged"}}), "folder", device="cuda")
    assert merged == engine_arguments(recipe(), "folder", device="cuda")
    assert not [name for name in merged if "lora" in name]


@pytest.mark.parametrize(("lora", "message"), [({"rank": 513}, "rank 512"), ({"targets": ["lm_head"]}, "lm_head")])
def test_an_adapter_vllm_cannot_run_is_refused(lora, message):
    with pytest.raises(UsageError, match=message):
        engine_arguments(recipe(model={"lora": lora}), "folder", device="cuda")


def request(prompt_tokens=3, **sampling):
    problem = Problem("p17", "text", (), "1", "test")
    return RolloutRequest(0, problem, np.zeros(prompt_tokens, np.int32), changed(**sampling), (1,))


def test_what_vllm_would_cut_is_refused():
    check_request(request(prompt_tokens=88), 100)  # 88 + 12 = 100
    with pytest.raises(UsageError, match=r"p17: a prompt of 89 tokens .* need 101 tokens, .* started for 100"):
        check_request(request(prompt_tokens=89), 100)


@pytest.mark.parametrize("temperature", [0.0099, 2.01])
def test_a_temperature_vllm_would_change_is_refused(temperature):
    with pytest.raises(UsageError, match="temperature"):
        check_request(request(temperature=temperature), 100)


@pytest.mark.parametrize("length", [1, 10])
def test_sequences_that_cannot_be_scored_are_refused(length):
    check_sequences([np.zeros(9, np.int32)], 10)
    with pytest.raises(ValueError, match=f"{length} tokens: 2 to 9"):
        check_sequences([np.zeros(length, np.int32)], 10)


def test_seeds_fit_signed_integers_and_none_means_no_seed():
    assert engine_seed(2**64 - 1) == 2**63 - 1
    assert engine_seed(5) == 5
    assert engine_seed(2**63 + 5) == 5


@pytest.mark.vllm
def test_every_argument_exists_in_the_installed_vllm(vllm, folder):
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    for device in ("cpu", "cuda"):
        arguments = engine_arguments(recipe(model={"lora": {}}), folder, device=device)
        for kind in (EngineArgs, AsyncEngineArgs):
            assert set(arguments) <= {field.name for field in fields(kind)}


@pytest.mark.vllm
def test_every_sampling_field_arrives_and_nothing_else_stops_a_response(vllm):
    sampling = changed(
        max_response_tokens=7,
        temperature=0.7,
        top_p=0.8,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        stop_token_ids=(3, 9),
        stop_strings=("!",),
    )
    params = sampling_params(sampling, 2**64 - 1)
    stated = SimpleNamespace(
        max_tokens=7,
        temperature=0.7,
        top_p=0.8,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        stop_token_ids=[3, 9],
        stop=["!"],
        seed=2**63 - 1,
        ignore_eos=True,
        min_tokens=0,
        n=1,
        logprobs=0,
        flat_logprobs=True,
        detokenize=True,
        skip_special_tokens=False,
    )
    assert {name: getattr(params, name) for name in vars(stated)} == vars(stated)
    assert params.output_kind.name == "FINAL_ONLY"


@pytest.mark.vllm
def test_text_is_decoded_only_to_look_for_stop_strings(vllm):
    assert sampling_params(SAMPLING, 1).detokenize is False
    assert scoring_params().detokenize is False
    assert scoring_params().prompt_logprobs == 0

"""The asynchronous vllm engine: groups, weights through a weight-transfer engine, adapters, and what it refuses."""

import asyncio
import json
import os

import numpy as np
import psutil
import pytest
from safetensors.torch import save_file
from samplings import changed
from vllm_tiny import (
    NEEDS_VLLM,
    TOKENIZER,
    assert_sampled_from,
    logprobs_of,
    long_request,
    requests,
    same_rollouts,
    sequences_of,
    tied_model,
    vllm_recipe,
    with_adapter,
    write_model,
)

from dapo_cli.errors import UsageError
from dapo_cli.rollout.vllm_async import AsyncVLLMEngine

pytestmark = NEEDS_VLLM
LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}


def children():
    return {process.pid for process in psutil.Process().children(recursive=True) if "VLLM" in process.name()}


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(tmp_path_factory, loop):
    folder = write_model(tmp_path_factory.mktemp("model"))
    shm = set(os.listdir("/dev/shm"))
    before = children()

    async def start():
        return AsyncVLLMEngine(
            vllm_recipe(lora=LORA), folder, TOKENIZER, "cpu", "test_file", "vllm_file_transfer.Extension"
        )

    engine = loop.run(start())
    loop.run(engine.init_weight_transfer_engine({}))
    yield engine
    engine.close()
    assert children() == before
    assert set(os.listdir("/dev/shm")) == shm


async def send(engine, model, folder, version):
    path = folder / f"weights-{version}.safetensors"
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, path)
    await engine.start_weight_update()
    await engine.update_weights({"path": str(path)})
    await engine.finish_weight_update(str(version))
    engine.policy_version = version


def at(temperature):
    return changed(max_response_tokens=32, stop_token_ids=(TOKENIZER.eos_token_id,), temperature=temperature)


async def sample(engine, count, temperature=1.0):
    wanted = requests(count, at(temperature))
    return list(await asyncio.gather(*(engine.generate_group(request) for request in wanted)))


def test_weights_arrive_the_tied_head_included_and_nothing_old_is_reused(engine, loop, tmp_path):
    async def main():
        for seed in (0, 1):
            model = tied_model(seed)
            await send(engine, model, tmp_path, version=seed + 3)
            for temperature in (1.0, 0.7):
                groups = await sample(engine, 4, temperature=temperature)
                groups.append(await engine.generate_group(long_request(at(temperature))))
                assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {seed + 3}
                assert_sampled_from(model, groups, temperature)
            sequences = sequences_of(await sample(engine, 2))
            for sequence, found in zip(sequences, await engine.prompt_logprobs(sequences), strict=True):
                np.testing.assert_allclose(found, logprobs_of(model, sequence), atol=1e-4)

    loop.run(main())


def test_a_seed_decides_a_rollout_whatever_is_sampled_beside_it(engine, loop, tmp_path):
    async def main():
        together = await sample(engine, 6)
        alone = [await engine.generate_group(request) for request in requests(6)]
        assert same_rollouts(together, alone)

    loop.run(main())


def test_a_cancelled_group_is_given_up_and_weights_wait_for_those_under_way(engine, loop, tmp_path):
    endless = changed(max_response_tokens=32, stop_token_ids=())

    async def main():
        task = asyncio.ensure_future(engine.generate_group(requests(1, endless, group_size=200)[0]))
        while engine.num_unfinished < 200:
            await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match="cannot load weights while 200 rollouts are under way"):
            await engine.start_weight_update()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.num_unfinished:
            await asyncio.sleep(0.001)
        await send(engine, tied_model(0), tmp_path, version=9)

    loop.run(asyncio.wait_for(main(), 60))


def test_a_changed_version_within_a_rollout_is_noticed(engine, loop):
    async def main():
        task = asyncio.ensure_future(engine.generate_group(requests(1)[0]))
        await asyncio.sleep(0)
        engine.policy_version += 1
        with pytest.raises(RuntimeError, match="within a rollout"):
            await task
        while engine.num_unfinished:
            await asyncio.sleep(0.001)

    loop.run(asyncio.wait_for(main(), 60))


def test_what_does_not_fit_is_refused(engine, loop):
    with pytest.raises(UsageError, match="started for 192"):
        loop.run(engine.generate_group(requests(1, changed(max_response_tokens=192))[0]))
    with pytest.raises(ValueError, match="cannot score 192 tokens"):
        loop.run(engine.prompt_logprobs([np.zeros(192, np.int32)]))


def test_on_a_cpu_sleep_does_nothing_and_says_so(engine, loop):
    assert loop.run(engine.sleep()) is False
    loop.run(engine.wake())


def test_each_adapter_replaces_the_one_before(engine, loop, tmp_path):
    async def main():
        await send(engine, tied_model(0), tmp_path, version=20)
        sequences = sequences_of(await sample(engine, 2))
        for seed in (1, 2):
            model = with_adapter(tied_model(0), tmp_path / f"adapter-{seed}", seed)
            await engine.set_adapter(tmp_path / f"adapter-{seed}")
            for sequence, found in zip(sequences, await engine.prompt_logprobs(sequences), strict=True):
                assert np.abs(found - logprobs_of(tied_model(0), sequence)).max() > 0.1
                np.testing.assert_allclose(found, logprobs_of(model, sequence), atol=1e-4)

    loop.run(main())


def test_an_adapter_of_a_higher_rank_is_refused(engine, loop, tmp_path):
    with_adapter(tied_model(0), tmp_path, 1)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"r": 64}))
    with pytest.raises(Exception, match="rank 64"):
        loop.run(engine.set_adapter(tmp_path))

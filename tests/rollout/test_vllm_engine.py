"""The vllm engine in this process: what it samples and records, its seeds, its order, and its weights."""

import os

import numpy as np
import pytest
import torch
from samplings import changed
from vllm_tiny import (
    NEEDS_VLLM,
    SAMPLING,
    TOKENIZER,
    assert_sampled_from,
    logprobs_of,
    long_request,
    requests,
    same_rollouts,
    sequences_of,
    tied_model,
    vllm_recipe,
    weights,
    write_model,
)

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.errors import UsageError
from dapo_cli.policy.batch import Batch
from dapo_cli.policy.forward import response_logprobs
from dapo_cli.policy.model import prepare_policy
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.rollout.vllm_engine import VLLMEngine

pytestmark = NEEDS_VLLM
STOP = SAMPLING.stop_token_ids[0]


@pytest.fixture(scope="module")
def notes():
    return []


@pytest.fixture(scope="module")
def shared(tmp_path_factory, notes):
    before = set(os.listdir("/dev/shm")), torch.get_num_threads()
    engine = VLLMEngine(vllm_recipe(), write_model(tmp_path_factory.mktemp("model")), TOKENIZER, "cpu", notes.append)
    yield engine
    engine.close()
    assert not torch.distributed.is_initialized()
    assert (set(os.listdir("/dev/shm")), torch.get_num_threads()) == before


@pytest.fixture
def engine(shared):
    """The engine with the weights of seed 0, version 0."""
    shared.policy_version = 0
    shared.load_weights(weights(tied_model(0)))
    yield shared
    assert shared.num_unfinished == 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_the_policy_computes(engine, temperature):
    sampling = changed(max_response_tokens=32, stop_token_ids=(STOP,), temperature=temperature)
    groups = list(engine.generate(requests(6, sampling)))
    recipe = vllm_recipe()
    recipe = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"temperature": temperature})})
    policy = tied_model(0)
    prepare_policy(policy, recipe.model)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    batch = Batch(
        token_ids=np.concatenate(sequences_of(groups)).astype(np.int32),
        prompt_lengths=np.repeat([len(group.prompt_ids) for group in groups], 4).astype(np.int32),
        response_lengths=np.array([len(rollout.response_ids) for rollout in rollouts], np.int32),
        groups=np.repeat(np.arange(6), 4).astype(np.int32),
        advantages=group_advantages(np.arange(24.0).reshape(6, 4), "none").reshape(-1),
        in_loss=np.ones(24, bool),
        rollout_logprobs=np.concatenate([rollout.rollout_logprobs for rollout in rollouts]),
    )
    logprobs = response_logprobs(policy, batch, recipe)[0].detach().numpy()
    np.testing.assert_allclose(batch.rollout_logprobs, logprobs, atol=1e-4)


def test_a_seed_decides_a_rollout_whatever_is_sampled_beside_it(engine):
    together = list(engine.generate(requests(12)))
    alone = [next(engine.generate([request])) for request in requests(12)]
    backwards = list(engine.generate(requests(12)[::-1]))[::-1]
    assert same_rollouts(together, alone)
    assert same_rollouts(together, backwards)


def test_duplicated_prompts_and_samples_of_a_group_differ(engine):
    first, second = requests(8)[0], requests(8)[7]
    assert first.prompt_ids.tolist() != second.prompt_ids.tolist()
    twin = type(first)(7, first.problem, first.prompt_ids, first.sampling, second.seeds)
    responses = [rollout.response for group in engine.generate([first, twin]) for rollout in group.rollouts]
    assert len(set(responses)) == 8


def test_a_response_ends_at_and_includes_the_first_stop_token_or_is_marked_truncated(engine):
    rollouts = [rollout for group in engine.generate(requests(20)) for rollout in group.rollouts]
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}
    for rollout in rollouts:
        ids = rollout.response_ids.tolist()
        stopped = rollout.finish_reason == "stop"
        assert ids.index(STOP) == len(ids) - 1 if stopped else STOP not in ids
        assert stopped or len(ids) == 32
        assert rollout.response == TOKENIZER.decode(ids[:-1] if stopped else ids, skip_special_tokens=True)


def test_the_end_token_of_the_checkpoint_means_nothing_by_itself(engine):
    sampling = changed(max_response_tokens=32, stop_token_ids=())
    rollouts = [rollout for group in engine.generate(requests(20, sampling)) for rollout in group.rollouts]
    assert {(rollout.finish_reason, len(rollout.response_ids)) for rollout in rollouts} == {("length", 32)}
    assert any(STOP in rollout.response_ids[:-1] for rollout in rollouts)


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(engine):
    stop = "e"
    free = [rollout for group in engine.generate(requests(20)) for rollout in group.rollouts]
    sampling = changed(max_response_tokens=32, stop_token_ids=(STOP,), stop_strings=(stop,))
    stopped = [rollout for group in engine.generate(requests(20, sampling)) for rollout in group.rollouts]
    hit = 0
    for before, after in zip(free, stopped, strict=True):
        ids = before.response_ids
        body = len(ids) - (before.finish_reason == "stop")
        end = next((end for end in range(1, body + 1) if stop in TOKENIZER.decode(ids[:end])), None)
        hit += end is not None
        assert after.response_ids.tolist() == ids[:end].tolist()
        assert after.finish_reason == (before.finish_reason if end is None else "stop")
        assert stop not in after.response
        assert TOKENIZER.decode(after.response_ids, skip_special_tokens=True).startswith(after.response)
    assert hit > 10


def test_stop_strings_end_what_the_hf_engine_ends(engine):
    """Both engines always draw the likeliest token here."""
    policy = tied_model(0)
    prepare_policy(policy, vllm_recipe().model)
    sampling = changed(max_response_tokens=32, stop_token_ids=(STOP,), stop_strings=("e",), top_k=1)
    ours = [rollout for group in engine.generate(requests(7, sampling)) for rollout in group.rollouts]
    theirs = HFEngine(policy, TOKENIZER, "float32", 64).generate(requests(7, sampling))
    for one, two in zip(ours, (rollout for group in theirs for rollout in group.rollouts), strict=True):
        assert one.response_ids.tolist() == two.response_ids.tolist()
        assert (one.response, one.finish_reason) == (two.response, two.finish_reason)


def test_groups_come_back_in_the_order_of_submission_also_when_submitted_while_reading(engine):
    stream = engine.generate(requests(12))
    seen = [next(stream).index]
    later = engine.generate(requests(2, first=12))
    seen += [group.index for group in stream] + [group.index for group in later]
    assert seen == list(range(14))


def test_what_is_submitted_later_is_sampled_beside_what_is_under_way(engine):
    endless = changed(max_response_tokens=32, stop_token_ids=())
    first = engine.generate(requests(2, endless))
    for _ in range(5):
        engine.step()
    second = engine.generate(requests(2, endless, first=2))
    assert [group.index for group in first] == [0, 1]
    assert engine.num_unfinished == 8
    for _ in range(5):  # 32 tokens after 32 steps: the later ones are 5 steps behind, not 32
        engine.step()
    assert engine.num_unfinished == 0
    assert [group.index for group in second] == [2, 3]


def test_new_weights_are_sampled_from_the_tied_head_included_and_nothing_old_is_reused(engine):
    sequences = sequences_of(engine.generate([*requests(4), long_request()]))
    other = tied_model(1)
    old = engine.prompt_logprobs(sequences)
    engine.load_weights(weights(other))
    for sequence, before, after in zip(sequences, old, engine.prompt_logprobs(sequences), strict=True):
        assert np.abs(after - before).max() > 0.1
        np.testing.assert_allclose(after, logprobs_of(other, sequence), atol=1e-4)
    # The same prompt again: keys and values of the old weights would be found in a cache that was not cleared.
    assert_sampled_from(other, engine.generate([long_request()]))


def test_a_prompt_in_the_cache_is_scored_in_full(engine):
    request = long_request()
    for _ in range(2):
        assert_sampled_from(tied_model(0), engine.generate([request]))
        (found,) = engine.prompt_logprobs([request.prompt_ids])
        np.testing.assert_allclose(found, logprobs_of(tied_model(0), request.prompt_ids), atol=1e-4)


def test_rollouts_bear_the_version_of_their_weights(engine):
    engine.policy_version = 5
    assert {rollout.policy_version for rollout in next(engine.generate(requests(1))).rollouts} == {5}


def test_weights_do_not_change_while_rollouts_are_under_way(engine):
    stream = engine.generate(requests(1))
    with pytest.raises(RuntimeError, match="cannot load weights while 4 rollouts are under way"):
        engine.load_weights(weights(tied_model(1)))
    with pytest.raises(RuntimeError, match="cannot sleep"):
        engine.sleep()
    stream.close()


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_an_abandoned_iterator_gives_up_its_rollouts_and_no_others(engine, how):
    stream = engine.generate(requests(20))
    next(stream)
    other = engine.generate(requests(2, first=30))
    assert engine.num_unfinished > 8
    if how == "closed":
        stream.close()
        assert list(stream) == []
    else:
        del stream
    assert engine.num_unfinished == 8
    assert [group.index for group in other] == [30, 31]
    engine.load_weights(weights(tied_model(1)))


def test_a_request_that_does_not_fit_is_refused_before_anything_is_submitted(engine):
    with pytest.raises(UsageError, match="started for 192"):
        engine.generate([*requests(1), *requests(1, changed(max_response_tokens=192))])
    assert engine.num_unfinished == 0


def test_on_a_cpu_sleep_does_nothing_and_says_so(engine, notes):
    before = list(engine.generate(requests(2)))
    engine.sleep()
    engine.wake(["weights"])
    engine.wake(["kv_cache"])
    assert "cannot sleep on a CPU" in notes[-1]
    assert same_rollouts(before, list(engine.generate(requests(2))))


def test_there_is_one_engine_per_process(engine, tmp_path):
    with pytest.raises(RuntimeError, match="one engine per process"):
        VLLMEngine(vllm_recipe(), write_model(tmp_path), TOKENIZER, "cpu", print)

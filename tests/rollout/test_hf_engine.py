"""The hf engine: what it samples, what it records, when it stops, and that nothing beside a rollout changes it."""

import numpy as np
import pytest
import torch
from samplings import SAMPLING, STOP, changed
from tiny import VOCAB, tiny_policy

from dapo_cli.errors import UsageError
from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.types import Problem, RolloutRequest


class LetterTokenizer:
    """Token 3 is the end, every other token a character."""

    def decode(self, ids, skip_special_tokens=False):
        return "".join("" if i == STOP and skip_special_tokens else chr(ord("A") + int(i)) for i in ids)

    def batch_decode(self, rows):
        return [self.decode(row) for row in rows]


def requests(count, sampling=SAMPLING, group_size=4, first=0):
    problem = Problem("id", "text", (), "1", "test")
    prompts = [np.arange(2 + (index * 5) % 7, dtype=np.int32) + index for index in range(first, first + count)]
    return [
        RolloutRequest(
            index, problem, prompt % VOCAB, sampling, tuple(rollout_seed(index, sample) for sample in range(group_size))
        )
        for index, prompt in enumerate(prompts, start=first)
    ]


def engine(policy=None, concurrent=64):
    return HFEngine(policy or tiny_policy(), LetterTokenizer(), "float32", concurrent)


def own_distribution(policy, prompt_ids, response_ids, sampling=SAMPLING):
    """Scores / temperature of every response position, by the model's own eager forward without a cache."""
    ids = torch.from_numpy(np.concatenate([prompt_ids, response_ids]).astype(np.int64))
    policy.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy(input_ids=ids[None]).logits[0, len(prompt_ids) - 1 : -1]
    policy.set_attn_implementation("dapo_packed")
    return logits / sampling.temperature


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_of_the_full_forward(temperature):
    policy = tiny_policy()
    sampling = changed(temperature=temperature)
    for group in engine(policy).generate(requests(6, sampling)):
        for rollout in group.rollouts:
            scores = own_distribution(policy, group.prompt_ids, rollout.response_ids, sampling)
            expected = torch.log_softmax(scores, -1).gather(
                1, torch.from_numpy(rollout.response_ids.astype(int))[:, None]
            )
            np.testing.assert_allclose(rollout.rollout_logprobs, expected[:, 0].numpy(), atol=2e-5)


def test_a_response_ends_at_and_includes_the_first_stop_token_or_is_marked_truncated():
    rollouts = [rollout for group in engine().generate(requests(20)) for rollout in group.rollouts]
    reasons = {rollout.finish_reason for rollout in rollouts}
    assert reasons == {"stop", "length"}
    for rollout in rollouts:
        ids = rollout.response_ids.tolist()
        if rollout.finish_reason == "stop":
            assert ids.index(STOP) == len(ids) - 1
            assert rollout.response == LetterTokenizer().decode(ids[:-1])
        else:
            assert STOP not in ids
            assert len(ids) == SAMPLING.max_response_tokens


def test_tokens_depend_on_seed_and_weights_only_and_not_on_neighbours_or_order():
    policy = tiny_policy()
    together = {group.index: group for group in engine(policy).generate(requests(9))}
    alone = [next(engine(policy, concurrent=4).generate([request])) for request in requests(9)]
    shuffled = {group.index: group for group in engine(policy, concurrent=12).generate(requests(9)[::-1])}
    for group in alone:
        for other in (together[group.index], shuffled[group.index]):
            for one, two in zip(group.rollouts, other.rollouts, strict=True):
                np.testing.assert_array_equal(one.response_ids, two.response_ids)
                np.testing.assert_allclose(one.rollout_logprobs, two.rollout_logprobs, atol=1e-5)


def test_duplicated_prompts_and_samples_of_a_group_differ():
    first, second = requests(1)[0], requests(1, first=7)[0]
    twin = RolloutRequest(second.index, first.problem, first.prompt_ids, SAMPLING, second.seeds)
    groups = list(engine().generate([first, twin]))
    texts = {rollout.response for group in groups for rollout in group.rollouts}
    assert len(texts) == 8


def test_the_engine_repeats_bit_for_bit():
    one, two = (list(engine().generate(requests(8))) for _ in range(2))
    for left, right in zip(one, two, strict=True):
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            assert a.response_ids.tobytes() == b.response_ids.tobytes()
            assert a.rollout_logprobs.tobytes() == b.rollout_logprobs.tobytes()


def test_groups_come_back_in_the_order_of_submission_also_when_submitted_while_reading():
    sampler = engine(concurrent=8)
    stream = sampler.generate(requests(3))
    seen = [next(stream).index]
    later = sampler.generate(requests(2, first=3))
    seen += [group.index for group in stream] + [group.index for group in later]
    assert seen == [0, 1, 2, 3, 4]


def test_the_policy_version_is_stamped():
    sampler = engine()
    sampler.policy_version = 7
    assert {rollout.policy_version for rollout in next(sampler.generate(requests(1))).rollouts} == {7}


def test_sampled_frequencies_match_the_distribution():
    policy = tiny_policy()
    request = requests(1, changed(max_response_tokens=1), group_size=20_000)[0]
    group = next(engine(policy, concurrent=20_000).generate([request]))
    counts = np.bincount([int(rollout.response_ids[0]) for rollout in group.rollouts], minlength=VOCAB)
    expected = torch.softmax(own_distribution(policy, request.prompt_ids, np.array([0])), -1)[0].numpy() * 20_000
    # Pearson's statistic over 31 degrees of freedom: 61.1 is its 99.9% quantile.
    assert float(((counts - expected) ** 2 / expected).sum()) < 61.1


def test_a_stop_string_ends_a_response_and_is_left_out_of_the_text():
    free = [r for group in engine().generate(requests(20)) for r in group.rollouts]
    letter = max("ABCDEFGHIJKLMNOP".replace("D", ""), key=lambda c: sum(c in r.response for r in free))
    stopped = [r for g in engine().generate(requests(20, changed(stop_strings=(letter,)))) for r in g.rollouts]
    hit = 0
    for before, after in zip(free, stopped, strict=True):
        assert after.response == before.response.split(letter)[0]
        if letter in before.response:
            hit += 1
            assert after.finish_reason == "stop"
            assert LetterTokenizer().decode(after.response_ids) == before.response.split(letter)[0] + letter
    assert hit > 10


def test_a_penalty_is_refused_instead_of_being_left_out():
    with pytest.raises(UsageError, match="the hf engine has no penalties"):
        engine().generate(requests(1, changed(repetition_penalty=1.1)))


def test_generation_config_of_a_checkpoint_changes_nothing():
    plain, planted = tiny_policy(), tiny_policy()
    planted.generation_config.repetition_penalty = 1.1
    planted.generation_config.top_k = 20
    planted.generation_config.temperature = 0.1
    planted.generation_config.eos_token_id = 9
    one, two = (list(engine(policy).generate(requests(8))) for policy in (plain, planted))
    for left, right in zip(one, two, strict=True):
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            assert a.response_ids.tobytes() == b.response_ids.tobytes()
            assert a.rollout_logprobs.tobytes() == b.rollout_logprobs.tobytes()


def test_a_group_larger_than_what_runs_side_by_side_is_sampled_in_parts():
    policy = tiny_policy()
    whole = next(engine(policy).generate(requests(1, group_size=9)))
    parts = next(engine(policy, concurrent=4).generate(requests(1, group_size=9)))
    assert [r.response_ids.tolist() for r in parts.rollouts] == [r.response_ids.tolist() for r in whole.rollouts]


def test_bfloat16_sampling_keeps_keys_in_bfloat16_and_sees_weights_that_changed():
    policy = tiny_policy()
    sampler = HFEngine(policy, LetterTokenizer(), "bfloat16", 64)
    before = next(sampler.generate(requests(1, group_size=16)))
    scores = own_distribution(policy, before.prompt_ids, before.rollouts[0].response_ids)
    chosen = torch.from_numpy(before.rollouts[0].response_ids.astype(int))[:, None]
    expected = torch.log_softmax(scores, -1).gather(1, chosen)[:, 0].numpy()
    np.testing.assert_allclose(before.rollouts[0].rollout_logprobs, expected, atol=0.1)
    with torch.no_grad():
        policy.lm_head.weight.zero_()
    after = next(sampler.generate(requests(1, group_size=16)))
    np.testing.assert_allclose(after.rollouts[0].rollout_logprobs, np.log(1 / VOCAB), atol=1e-3)

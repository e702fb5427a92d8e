"""vLLM's outputs as rollouts: arrays, text, reasons, and what must not pass."""

from types import SimpleNamespace

import numpy as np
import pytest
from samplings import SAMPLING, STOP, changed

from dapo_cli.errors import DapoError
from dapo_cli.rollout.response_text import response_text
from dapo_cli.rollout.vllm_outputs import PendingGroup, prompt_logprobs, to_rollout
from dapo_cli.types import Problem, RolloutRequest


class LetterTokenizer:
    """Token 3 is the end, every other token a letter."""

    def decode(self, ids, skip_special_tokens=False):
        return "".join("" if i == STOP and skip_special_tokens else chr(ord("A") + int(i)) for i in ids)


def flat(ids, values):
    return SimpleNamespace(token_ids=list(ids), logprobs=list(values))


def completion(ids, finish_reason="stop", values=None):
    values = [-0.5] * len(ids) if values is None else values
    return SimpleNamespace(token_ids=tuple(ids), logprobs=flat(ids, values), finish_reason=finish_reason)


def test_a_stopped_response_keeps_its_stop_token_and_drops_its_text():
    rollout = to_rollout(completion([0, 1, STOP], values=[-0.1, -0.2, -0.3]), SAMPLING, LetterTokenizer(), 7)
    assert rollout.response_ids.dtype == np.int32
    assert rollout.response_ids.tolist() == [0, 1, STOP]
    assert rollout.rollout_logprobs.dtype == np.float32
    np.testing.assert_array_equal(rollout.rollout_logprobs, np.array([-0.1, -0.2, -0.3], np.float32))
    assert (rollout.response, rollout.finish_reason, rollout.policy_version) == ("AB", "stop", 7)


def test_a_truncated_response_is_marked():
    assert to_rollout(completion([0, 1], "length"), SAMPLING, LetterTokenizer(), 0).finish_reason == "length"


def test_text_is_cut_before_the_first_stop_string_and_ids_are_not():
    sampling = changed(stop_strings=("CA", "B"))
    rollout = to_rollout(completion([0, 2, 0, 1]), sampling, LetterTokenizer(), 0)
    assert rollout.response == "A"
    assert rollout.response_ids.tolist() == [0, 2, 0, 1]


def test_an_empty_response_has_no_text():
    assert response_text(np.zeros(0, np.int32), SAMPLING, LetterTokenizer()) == ""


@pytest.mark.parametrize("reason", ["abort", "error", "repetition", None])
def test_a_response_that_was_given_up_is_no_rollout(reason):
    with pytest.raises(DapoError, match="given up after 2 tokens"):
        to_rollout(completion([0, 1], reason), SAMPLING, LetterTokenizer(), 0)


def test_logprobs_of_other_tokens_or_that_are_not_finite_are_refused():
    other = SimpleNamespace(token_ids=(0, 1), logprobs=flat([0, 2], [-1.0, -1.0]), finish_reason="stop")
    with pytest.raises(DapoError, match="do not belong"):
        to_rollout(other, SAMPLING, LetterTokenizer(), 0)
    missing = SimpleNamespace(token_ids=(0, 1), logprobs=flat([0], [-1.0]), finish_reason="stop")
    with pytest.raises(DapoError, match="1 tokens do not belong to the 2"):
        to_rollout(missing, SAMPLING, LetterTokenizer(), 0)
    with pytest.raises(DapoError, match="1 of 2 log-probs are not finite"):
        to_rollout(completion([0, 1], values=[-1.0, float("nan")]), SAMPLING, LetterTokenizer(), 0)


def test_prompt_logprobs_start_at_the_second_token():
    output = SimpleNamespace(prompt_logprobs=flat([5, 6], [-1.0, -2.0]))
    assert prompt_logprobs(output, np.array([4, 5, 6], np.int32)).tolist() == [-1.0, -2.0]
    with pytest.raises(DapoError, match="do not belong"):
        prompt_logprobs(output, np.array([4, 5, 7], np.int32))


def group(version):
    request = RolloutRequest(3, Problem("id", "t", (), "1", "x"), np.array([1], np.int32), SAMPLING, (10, 11))
    return PendingGroup(request, LetterTokenizer(), version)


def test_a_group_is_in_the_order_of_its_seeds_whatever_finishes_first():
    pending = group(version=2)
    pending.finish(1, completion([1, STOP]), 2)
    assert not pending.complete
    pending.finish(0, completion([0, STOP]), 2)
    assert pending.complete
    assert [rollout.response for rollout in pending.group().rollouts] == ["A", "B"]
    assert (pending.group().index, pending.group().rollouts[0].policy_version) == (3, 2)


def test_weights_that_changed_within_a_rollout_are_noticed():
    with pytest.raises(RuntimeError, match="from version 2 to 3"):
        group(version=2).finish(0, completion([STOP]), 3)

"""Text of responses while they are sampled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_policy
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from dapo_cli.rollout.hf_engine import HFEngine
from dapo_cli.rollout.response_text import response_text
from dapo_cli.rollout.streaming import TextStream
from dapo_cli.types import Problem, RolloutRequest, Sampling


def byte_tokenizer():
    """One token per byte, so that a character may take several."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZER = byte_tokenizer()


def sampling(*stop_strings, **changes):
    values = {"max_response_tokens": 64, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    values |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return Sampling(**{**values, "stop_token_ids": (), "stop_strings": tuple(stop_strings), **changes})


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@given(st.text(max_size=30), st.integers(1, 4))
def test_all_parts_joined_are_the_text_of_the_response(text, tokens_at_once):
    ids, stream = ids_of(text), TextStream(TOKENIZER, sampling())
    parts = [stream.push(ids[start : start + tokens_at_once]) for start in range(0, len(ids), tokens_at_once)]
    assert "".join([*parts, stream.end()]) == response_text(np.array(ids, np.int32), sampling(), TOKENIZER) == text


def test_an_unfinished_character_is_held_back():
    stream = TextStream(TOKENIZER, sampling())
    first, second, third = ids_of("€")
    assert [stream.push([first]), stream.push([second]), stream.push([third])] == ["", "", "€"]


def test_what_may_begin_a_stop_string_is_held_back_and_the_string_itself_is_no_text():
    stream = TextStream(TOKENIZER, sampling("STOP"))
    shown = [stream.push([token]) for token in ids_of("a STaSTOP")]
    assert "STOP" not in "".join(shown)
    assert "".join(shown) + stream.end() == "a STa"


@pytest.mark.parametrize("stop", [(), (3, 5)])
def test_the_hf_engine_tells_of_the_tokens_that_generate_gives(stop):
    engine = HFEngine(tiny_policy(), TOKENIZER, "float32", 4)
    wanted = sampling(max_response_tokens=12, stop_token_ids=stop)
    problem = Problem("p", "?", (), "1", "t")
    requests = [RolloutRequest(7, problem, np.array([1, 2, 3], np.int32), wanted, (11, 12, 13))]
    requests += [RolloutRequest(8, problem, np.array([4], np.int32), wanted, (11, 14))]
    [*groups] = engine.generate(requests)
    expected = {
        (request.index, seed): (rollout.response_ids.tolist(), rollout.finish_reason)
        for request, group in zip(requests, groups, strict=True)
        for seed, rollout in zip(request.seeds, group.rollouts, strict=True)
    }
    heard, reasons = {key: [] for key in expected}, {}

    def hear(index, seed, ids, reason):
        assert (index, seed) not in reasons
        heard[index, seed] += ids
        if reason is not None:
            reasons[index, seed] = reason

    engine.stream(requests, hear)
    assert {key: (heard[key], reasons[key]) for key in expected} == expected


def test_an_interruption_leaves_the_engine_as_it_was():
    engine = HFEngine(tiny_policy(), TOKENIZER, "float32", 1)
    wanted = sampling(max_response_tokens=6)
    requests = [
        RolloutRequest(n, Problem("p", "?", (), "1", "t"), np.array([1, n], np.int32), wanted, (5,)) for n in (1, 2)
    ]
    expected = [group.rollouts[0].response_ids.tolist() for group in engine.generate(requests)]

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.stream(requests, interrupt)
    assert [group.rollouts[0].response_ids.tolist() for group in engine.generate(requests)] == expected

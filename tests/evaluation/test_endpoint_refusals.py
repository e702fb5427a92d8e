"""What a server answers that is no response: named at once, or after the tries that make sense."""

import threading
from dataclasses import replace

import pytest
from asking import SAMPLING, answers, endpoint, error_of, questions
from fake_endpoint import FakeEndpoint, failure, good, listening

from dapo_cli.errors import DapoError, UsageError


def test_a_request_that_the_server_fails_at_gets_six_tries():
    fake = FakeEndpoint(lambda number, path, body: failure(500, "boom"))
    message = error_of(fake, DapoError, count=1)
    assert "problem p0 sample 0: 6 tries, the last: HTTP 500: boom" in message
    assert len(fake.posts) == 6


def test_a_server_that_is_too_slow_is_named():
    gate = threading.Event()
    fake = FakeEndpoint(lambda number, path, body: gate.wait(5) and None)
    try:
        message = error_of(fake, DapoError, count=1, timeout=0.05, wait=0.15)
    finally:
        gate.set()
    assert "no answer within 0.05 s" in message


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (400, "This model's maximum context length is 4096", "refuses the request: HTTP 400: This model's maximum"),
        (422, "seed: not supported", "refuses the request: HTTP 422: seed: not supported"),
        (401, "Incorrect API key", "HTTP 401: Incorrect API key | dapo eval sends the key in OPENAI_API_KEY"),
        (403, "no access", "HTTP 403: no access | dapo eval sends the key"),
        (404, "The model `served` does not exist", "Which models it serves: served"),
    ],
)
def test_what_the_server_refuses_is_said_in_its_words_at_once(status, said, expected):
    fake = FakeEndpoint(lambda number, path, body: failure(status, said))
    assert expected in error_of(fake, count=1)
    assert len(fake.posts) == 1


def test_the_models_served_are_listed_for_a_wrong_name_or_none():
    fake = FakeEndpoint()
    assert "no model other; it serves: served" in error_of(fake, model="other")
    fake.cards = {"data": [{"id": "b"}, {"id": "a"}]}
    assert "which model? It serves: a, b" in error_of(fake)
    assert fake.posts == []


def test_a_server_without_a_list_of_models_is_asked_by_name():
    fake, notes = FakeEndpoint(), []
    fake.cards = failure(404, "no such route")
    assert len(answers(fake, model="mine", notes=notes)) == 4
    assert {post[1]["model"] for post in fake.posts} == {"mine"}
    assert "lists no models" in notes[0]
    assert "is the URL that of an API like OpenAI's" in error_of(fake)


def test_only_vllm_and_sglang_get_fields_that_openai_does_not_have():
    fake = FakeEndpoint()
    fake.cards = {"data": [{"id": "gpt", "owned_by": "someone"}]}
    answers(fake)
    assert not {"top_k", "min_p", "repetition_penalty", "stop_token_ids"} & fake.posts[0][1].keys()
    with listening(fake) as url:
        asked = endpoint(url)
        assert "not sent, so the server's own: top_k, min_p, repetition_penalty" in asked.describe(SAMPLING)
        with pytest.raises(UsageError, match="top_k 20: OpenAI's API has no such field"):
            asked.describe(replace(SAMPLING, top_k=20))
        with pytest.raises(UsageError, match=r"stop_token_ids \[2\]"):
            list(asked.respond([replace(questions(1)[0], sampling=replace(SAMPLING, stop_token_ids=(2,)))]))


def test_empty_text_and_odd_ends_are_responses():
    replies = [
        {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}},
        {"choices": [{"message": {"content": None}, "finish_reason": "length"}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}], "usage": None},
    ]
    fake, notes = FakeEndpoint(lambda number, path, body: (200, replies[number], {})), []
    found = answers(fake, count=3, concurrency=1, notes=notes)
    assert [(each.text, each.tokens, each.finish_reason) for each in found] == [
        ("", 1, "stop"),
        ("", None, "length"),
        ("x", None, None),
    ]
    assert "sample 2: finish_reason 'content_filter'" in notes[0]


def test_a_server_that_ignores_the_limit_is_refused():
    fake = FakeEndpoint(lambda number, path, body: good(body, usage={"completion_tokens": 9}))
    assert "sampled 9 tokens where 8 were the limit" in error_of(fake, DapoError)

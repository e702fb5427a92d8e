import socket
import threading
import time

import pytest
from asking import PROBLEMS, REWARD, SETTINGS, answers, endpoint, questions
from fake_endpoint import FakeEndpoint, failure, good, listening

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.endpoint import Endpoint, Patience, base_url
from dapo_cli.evaluation.endpoint_http import Broken, Unavailable
from dapo_cli.evaluation.evaluate import evaluate, sample_seed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("samples.jsonl", "settings.json", "report.json")}


def test_every_question_is_answered_and_every_field_is_sent():
    fake = FakeEndpoint()
    responses = answers(fake)
    assert sorted(each.sample for each in responses) == [0, 1, 2, 3]
    for each in responses:
        seed = sample_seed(12, "p0", each.sample) % 2**63
        assert (each.index, each.text, each.tokens, each.finish_reason) == (
            0,
            f"Answer: {seed % 3}",
            3 + seed % 4,
            "stop",
        )
    path, body, headers = next(post for post in fake.posts if post[1]["seed"] == sample_seed(12, "p0", 1) % 2**63)
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    del body["seed"]
    assert body == {
        "model": "served",
        "messages": [{"role": "user", "content": "What is 0 + 1?"}],
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 0.7,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [],
        "n": 1,
        "stream": False,
    }


def test_the_key_is_sent_and_no_question_needs_no_server():
    fake = FakeEndpoint()
    with listening(fake) as url:
        list(Endpoint(url, api_key="secret").respond(questions(1)))
    assert fake.posts[0][2]["Authorization"] == "Bearer secret"
    assert list(Endpoint("http://127.0.0.1:1").respond([])) == []


def test_no_more_requests_than_allowed_are_under_way_and_quick_ones_come_first():
    gate = threading.Event()

    def script(number, path, body):
        if body["seed"] == questions()[0].seed % 2**63:
            gate.wait(5)

    fake = FakeEndpoint(script)
    with listening(fake) as url:
        arriving = endpoint(url, concurrency=3).respond(questions(20))
        first = [next(arriving).sample for _ in range(19)]
        assert 0 not in first
        gate.set()
        assert [each.sample for each in arriving] == [0]
    assert fake.most_under_way <= 3


@pytest.mark.parametrize(
    "trouble",
    [
        failure(500, "boom"),
        failure(429, "slow down"),
        failure(429, "slow down", Retry_After="0.02"),
        failure(503, "loading"),
        failure(502),
        (200, b"<html>proxy</html>", {}),
        (200, {"choices": []}, {}),
        (200, ["odd"], {}),
        (0, None, {}),
        (200, b'{"cut', {"Content-Length": "100"}),
        good({"seed": 0, "messages": []}, "abort"),
    ],
)
def test_trouble_that_passes_is_got_over(trouble):
    fake = FakeEndpoint(lambda number, path, body: trouble if number % 2 == 0 else None)
    notes = []
    with listening(fake) as url:
        responses = list(endpoint(url, notes=notes, concurrency=1).respond(questions(6)))
    assert [(each.sample, each.text) for each in responses] == [
        (q.sample, f"Answer: {q.seed % 2**63 % 3}") for q in questions(6)
    ]
    assert len(fake.posts) == 12
    assert len(notes) == 1
    assert "trying again, for up to 5 s" in notes[0]


def test_a_server_that_is_down_is_reported_and_what_arrived_is_kept(tmp_path):
    expected = run(FakeEndpoint(), tmp_path / "whole")
    dead = threading.Event()

    def script(number, path, body):
        if number == 7:
            dead.set()
        return (0, None, {}) if dead.is_set() else None

    notes = []
    with pytest.raises(DapoError, match=r"no answer for 0\.2 s.*"):
        run(FakeEndpoint(script), tmp_path / "part", notes=notes, wait=0.2)
    assert len((tmp_path / "part" / "samples.jsonl").read_text().splitlines()) == 7
    assert "trying again, for up to 0 s" in notes[0]
    fake = FakeEndpoint()
    assert run(fake, tmp_path / "part").problems == expected.problems
    assert len(fake.posts) == 20 - 7
    assert files(tmp_path / "part") == files(tmp_path / "whole")


def run(fake, folder, wait=5.0, notes=None):
    with listening(fake) as url:
        asked = endpoint(url, notes=notes, concurrency=1, wait=wait)
        return evaluate(asked.respond, PROBLEMS, SETTINGS, REWARD, folder)


def test_a_server_that_comes_back_is_waited_for_from_the_start_and_in_the_middle(tmp_path):
    whole = run(FakeEndpoint(), tmp_path / "whole")
    port = free_port()
    fake, notes = FakeEndpoint(), []
    found = []
    asked = endpoint(f"http://127.0.0.1:{port}", notes=notes, concurrency=2, wait=30.0)
    client = threading.Thread(
        target=lambda: found.append(evaluate(asked.respond, PROBLEMS, SETTINGS, REWARD, tmp_path / "torn"))
    )
    client.start()
    wait_until(lambda: notes)
    assert "Connection refused" in notes[0]
    fake.script = lambda number, path, body: time.sleep(0.02)
    with listening(fake, port):
        wait_until(lambda: len(fake.posts) >= 6)
    done = len(fake.posts)
    assert done < 20
    with listening(fake, port):
        client.join(30)
    assert found[0].problems == whole.problems
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def wait_until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("never")


def test_a_caller_that_stops_stops_the_requests():
    gate = threading.Event()
    fake = FakeEndpoint(lambda number, path, body: (gate.wait(5) and None) if number == 1 else None)
    before = set(threading.enumerate())
    with listening(fake) as url:
        arriving = endpoint(url, concurrency=1).respond(questions(50))
        next(arriving)
        wait_until(lambda: len(fake.posts) == 2)
        arriving.close()
        gate.set()
        wait_until(lambda: not any("_work" in each.name for each in set(threading.enumerate()) - before))
    assert len(fake.posts) == 2


def test_delays_grow_with_jitter_up_to_a_minute_and_keep_to_what_is_asked_for():
    patience = Patience("http://x", 1e6, lambda text: None)
    for tries, longest in [(1, 1.0), (2, 2.0), (4, 8.0), (30, 60.0)]:
        found = [patience.delay(Broken("x"), tries) for _ in range(50)]
        assert longest / 2 <= min(found) < max(found) <= longest
    assert all(7 <= patience.delay(Unavailable("x", 7.0), 1) <= 7.7 for _ in range(50))


def test_an_answer_to_anybody_ends_the_wait(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dapo_cli.evaluation.endpoint.time.monotonic", lambda: now[0])
    patience = Patience("http://x", 10.0, lambda text: None)
    patience.delay(Broken("x"), 1)
    now[0] = 9.0
    assert patience.delay(Broken("x"), 9) <= 1.0
    patience.answered()
    now[0] = 11.0
    patience.delay(Broken("x"), 1)
    now[0] = 21.0
    with pytest.raises(DapoError, match="http://x: no answer for 10 s: x"):
        patience.delay(Broken("x"), 1)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "", "http://host/v1?key=1", "http://a:b/"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(UsageError, match="not a URL"):
        base_url(url)


def test_openai_itself_gets_the_newer_name_of_the_limit():
    assert Endpoint("https://api.openai.com/v1", "gpt").limit_field == "max_completion_tokens"
    assert Endpoint("https://myopenai.com/v1", "gpt").limit_field == "max_tokens"

"""Workers are bounded in time and memory, replaced when killed, and leave nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.reward.pool import PoolSettings, WorkerPool, close_pools, shared_pool

SCORER = """
import os, time

def score(response, ground_truth, problem):
    if response == "hang":
        while True:
            pass
    if response == "die":
        os._exit(1)
    if response == "eat":
        return bool(bytearray(1 << 40))
    if response == "eat slowly":
        held = []
        while True:
            held.append(bytearray(1 << 20))
    if response == "raise":
        raise KeyError("oops")
    if response == "nest":
        return score_nested(0)
    if response == "pid":
        return {"score": 1.0, "prediction": str(os.getpid())}
    return {"score": 1.0, "prediction": response}

def score_nested(depth):
    return score_nested(depth + 1)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "pool_scorer.py").write_text(SCORER)
    monkeypatch.chdir(tmp_path)
    pool = WorkerPool(PoolSettings("pool_scorer:score", 2, time_limit_seconds=0.5, memory_limit_bytes=1 << 28))
    yield pool
    pool.close()


def request(response):
    return {"scorer": "pool_scorer:score", "response": response, "ground_truth": "", "problem": {}}


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids):
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ("hang", "the time limit of 0.5 s was reached"),
        ("die", "the worker process died"),
        ("eat", "the memory limit was reached"),
        ("eat slowly", "the memory limit was reached"),
        ("raise", "KeyError: 'oops'"),
    ],
)
def test_a_failure_costs_one_verdict_and_the_pool_goes_on(pool, response, error):
    bad = pool.submit(request(response))
    good = [pool.submit(request(str(index))) for index in range(20)]
    assert bad.result() == {"outcome": "verifier_error", "error": error}
    assert [future.result()["prediction"] for future in good] == [str(index) for index in range(20)]


def test_endless_recursion_is_one_more_failure(pool):
    assert pool.submit(request("nest")).result()["outcome"] == "verifier_error"
    assert pool.submit(request("x")).result()["outcome"] == "right"


def test_every_request_gets_its_own_answer_whatever_hangs_in_between(pool):
    texts = [("hang" if index % 10 == 3 else f"text {index}") for index in range(40)]
    replies = [future.result() for future in [pool.submit(request(text)) for text in texts]]
    for text, reply in zip(texts, replies, strict=True):
        assert reply["outcome"] == ("verifier_error" if text == "hang" else "right")
        assert reply.get("prediction") == (None if text == "hang" else text)


def test_lone_surrogates_and_long_responses_arrive_whole(pool):
    text = "\ud800\x00é" + "x" * 500_000
    reply = pool.submit(request(text)).result()
    assert reply["prediction"] == text[:300]


def test_a_hung_worker_is_gone_after_its_time(pool):
    pid = int(pool.submit(request("pid")).result()["prediction"])
    assert is_running(pid)
    hung = [pool.submit(request("hang")) for _ in range(2)]
    assert [future.result()["outcome"] for future in hung] == ["verifier_error"] * 2
    assert wait_until_gone([pid])


def test_from_threads_and_from_an_event_loop(pool):
    got = []

    def work(number):
        got.append(pool.submit(request(f"thread {number}")).result()["prediction"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [f"thread {number}" for number in range(8)]

    async def gather():
        futures = [asyncio.wrap_future(pool.submit(request(f"task {number}"))) for number in range(8)]
        return [reply["prediction"] for reply in await asyncio.gather(*futures)]

    assert asyncio.run(gather()) == [f"task {number}" for number in range(8)]


def test_after_closing_nothing_runs_and_nothing_is_taken(pool):
    pid = int(pool.submit(request("pid")).result()["prediction"])
    hung = pool.submit(request("hang"))
    pool.close()
    assert wait_until_gone([pid])
    assert hung.cancelled() or hung.result()["outcome"] == "verifier_error"
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(request("x"))


def test_a_scorer_that_cannot_be_imported_is_an_error_and_not_a_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = WorkerPool(PoolSettings("no_such_scorer_module:score", 1, 1.0, 1 << 30))
    with pytest.raises(UsageError, match="cannot be loaded: ModuleNotFoundError"):
        pool.submit(request("x")).result()
    pool.close()


def test_one_pool_per_settings(tmp_path, monkeypatch):
    settings = PoolSettings("a:b", 1, 1.0, 1 << 30)
    assert shared_pool(settings) is shared_pool(settings)
    assert shared_pool(settings) is not shared_pool(PoolSettings("a:b", 2, 1.0, 1 << 30))
    close_pools()


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
from dapo_cli.reward.pool import PoolSettings, shared_pool
pool = shared_pool(PoolSettings("pool_scorer:score", 2, 60.0, 1 << 30))
request = {"scorer": "pool_scorer:score", "response": "pid", "ground_truth": "", "problem": {}}
print(pool.submit(request).result()["prediction"], pool._nursery._process.pid, flush=True)
pool.submit({**request, "response": "hang"})
pool.submit({**request, "response": "hang"})
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("ending", ["exit", "kill", "interrupt"])
def test_no_process_outlives_the_program_however_it_ends(tmp_path, ending):
    (tmp_path / "pool_scorer.py").write_text(SCORER)
    wait = "0" if ending == "exit" else "60"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, wait], cwd=tmp_path, stdout=subprocess.PIPE, env=environment, text=True
    )
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 2
    if ending != "exit":
        time.sleep(0.2)
        program.send_signal(signal.SIGKILL if ending == "kill" else signal.SIGINT)
    program.communicate(timeout=30)
    assert wait_until_gone(pids)

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from vllm_tiny import NEEDS_VLLM, write_model

from dapo_cli.evaluation.endpoint import Endpoint
from dapo_cli.evaluation.endpoint_request import RequestTokenizer
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.evaluation.result import EvaluationSettings
from dapo_cli.recipe.schema import Reward
from dapo_cli.types import Problem, Sampling

pytestmark = [
    *NEEDS_VLLM,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("grpc_reflection") is None, reason="Ray Serve is not installed"),
]
SETTINGS = EvaluationSettings(
    "heldout", 16, Sampling(48, 1.0, 0.7, 0, 0.0, 1.0, 0.0, 0.0, (), ()), 12, "tiny", "toy_sums", "abc"
)
REWARD = Reward(overlong_buffer_length=4)


def problems():
    tokenizer = RequestTokenizer()
    for number in range(4):
        messages = [{"role": "user", "content": f"{number} + 1?"}]
        chat = tokenizer.apply_chat_template(messages, chat_template=None, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(chat, add_special_tokens=False).input_ids
        yield Problem(f"p{number}", f"{number} + 1?", (), str(number + 1), "toy_sums"), np.array(ids, np.int32)


def start(model, port, log):
    command = "from dapo_cli.cli import main; main()"
    arguments = ["serve", model, "--port", str(port), "--max-model-len", "256"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, "-c", command, *arguments], stderr=file, stdout=file, env=environment)


def descendants(process):
    """The process and all that it started, and they in turn."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [process]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found


def kill(processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def alive(process):
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("samples.jsonl", "report.json")}


def lines(folder):
    file = folder / "samples.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.02)


@pytest.fixture
def shared_memory():
    """What a killed server cannot give back is removed, so that tests which count it see their own."""
    before = set(Path("/dev/shm").iterdir())
    yield
    for path in set(Path("/dev/shm").iterdir()) - before:
        path.unlink(missing_ok=True)


@pytest.mark.usefixtures("shared_memory")
def test_an_evaluation_outlives_its_server(tmp_path):
    model = write_model(tmp_path / "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, notes, results = f"http://127.0.0.1:{port}", [], []

    def run(folder, concurrency):
        asked = Endpoint(url, "tiny", None, concurrency, (300.0, 60.0), notes.append)
        results.append(evaluate(asked.respond, list(problems()), SETTINGS, REWARD, folder))

    server, second = start(model, port, tmp_path / "first.log"), None
    try:
        run(tmp_path / "whole", 8)
        torn = threading.Thread(target=run, args=(tmp_path / "torn", 2))
        torn.start()
        wait_until(lambda: lines(tmp_path / "torn") >= 6, 60)
        kill(descendants(server.pid))
        server.wait()
        time.sleep(0.5)
        assert lines(tmp_path / "torn") < 64
        second = start(model, port, tmp_path / "second.log")
        torn.join(300)
        assert [result.problems for result in results] == [results[0].problems] * 2
        assert files(tmp_path / "torn") == files(tmp_path / "whole")
        assert len({line.split('"response": ')[1] for line in files_lines(tmp_path / "whole")}) > 32
        own = descendants(second.pid)
        assert len(own) > 3
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
        wait_until(lambda: not any(map(alive, own)), 30)
    finally:
        for each in (server, second):
            if each is not None:
                kill(descendants(each.pid))
    log = (tmp_path / "second.log").read_text()
    assert "serving tiny" in log
    assert "--generation-config vllm" in log
    assert "ended" in log.splitlines()
    assert any("trying again" in note for note in notes)


def files_lines(folder):
    return (folder / "samples.jsonl").read_text().splitlines()

"""The hub's files and failures, against a small hub of our own; each case a process, as huggingface_hub reads its
environment once."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c" * 40
FILES = {"data/train.jsonl": b'{"problem": "1 + 1?", "answer": "2"}\n', "README.md": b"a card\n"}
STATES = {"org/gated": 403, "org/private": 401, "org/missing": 404}
CODES = {401: "RepoNotFound", 403: "GatedRepo", 404: "RepoNotFound"}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that a download of a snapshot uses."""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0].removeprefix("/api").removeprefix("/datasets/").removeprefix("/models/")
        repo = "/".join(path.strip("/").split("/")[:2])
        code, headers, content = 200, {"X-Repo-Commit": COMMIT}, b""
        if repo in STATES:
            code = STATES[repo]
            headers["X-Error-Code"] = CODES[code]
        elif "/no-such-revision" in path:
            code, headers = 404, {"X-Error-Code": "RevisionNotFound"}
        elif "/resolve/" in path:
            content = FILES.get(path.partition(f"/resolve/{COMMIT}/")[2], b"")
            code = 200 if content else 404
            headers |= {"ETag": f'"{len(content)}"', "Content-Length": str(len(content))}
            headers |= {} if content else {"X-Error-Code": "EntryNotFound"}
        elif "/tree/" in path:
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in FILES.items()]
            content = json.dumps(tree).encode()
        else:
            siblings = [{"rfilename": name} for name in FILES]
            content = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


FETCH = """
import sys
from dapo_cli.errors import UsageError
from dapo_cli.hub import fetch_dataset_files
repo, revision, *patterns = sys.argv[1:]
try:
    found = fetch_dataset_files(repo, revision or None, tuple(patterns))
except UsageError as error:
    print("refused:", error.message, "|", error.hint)
else:
    print(found.commit, [path.relative_to(found.folder).as_posix() for path in found.files], found.files[0].read_text())
"""
CONFIG = """
import sys
from dapo_cli.errors import UsageError
from dapo_cli.policy.model import load_tokenizer
from dapo_cli.recipe.schema import Model
try:
    load_tokenizer(sys.argv[1], Model(path=sys.argv[1]))
except UsageError as error:
    print("refused:", error.message, "|", error.hint)
"""
OPTIONAL = """
import sys
from dapo_cli.errors import UsageError
from dapo_cli.hub import has_model_file
try:
    print(has_model_file(sys.argv[1], None, sys.argv[2]))
except UsageError as error:
    print("refused:", error.message, "|", error.hint)
"""
OFFLINE_HOST = "http://127.0.0.1:9"  # the discard port: nothing listens


def run(script: str, home: Path, endpoint: str, *arguments: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    values = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=values, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_matching_files_come_with_their_commit_and_stay_in_the_cache(endpoint: str, tmp_path: Path) -> None:
    expected = f"{COMMIT} ['data/train.jsonl'] " + FILES["data/train.jsonl"].decode().strip()
    assert run(FETCH, tmp_path, endpoint, "org/name", "", "**/*.jsonl") == expected
    # the server is gone, or may not be asked: the cache is enough
    assert run(FETCH, tmp_path, OFFLINE_HOST, "org/name", COMMIT, "**/*.jsonl") == expected
    assert run(FETCH, tmp_path, endpoint, "org/name", COMMIT, "data/*", HF_HUB_OFFLINE="1") == expected


@pytest.mark.parametrize(
    ("repo", "revision", "pattern", "message", "hint"),
    [
        ("org/name", "", "*.jsonl", "no file matches *.jsonl", "dataset.files"),  # * stays within a folder
        (
            "org/gated",
            "",
            "*",
            "dataset org/gated: gated or private (HTTP 403)",
            "/datasets/org/gated, then `hf auth login`",
        ),
        ("org/private", "", "*", "dataset org/private: not found on", "HF_TOKEN"),
        ("org/missing", "", "*", "dataset org/missing: not found on", "check its name"),
        ("org/name", "no-such-revision", "*", "at revision no-such-revision: there is no such revision", "newest"),
        (
            "org/name",
            "",
            "*.parquet",
            "no file matches *.parquet; it has README.md, data/train.jsonl",
            "dataset.files",
        ),
    ],
)
def test_what_cannot_be_had_is_one_line(
    endpoint: str, tmp_path: Path, repo: str, revision: str, pattern: str, message: str, hint: str
) -> None:
    said = run(FETCH, tmp_path, endpoint, repo, revision, pattern)
    assert said.startswith("refused: ")
    assert message in said.partition(" | ")[0]
    assert hint in said.partition(" | ")[2]
    assert "\n" not in said


def test_no_network_and_no_permission_to_use_it_are_told_apart(endpoint: str, tmp_path: Path) -> None:
    said = run(FETCH, tmp_path, OFFLINE_HOST, "org/name", "", "*")
    assert f"dataset org/name: {OFFLINE_HOST} cannot be reached (" in said
    assert "set HF_ENDPOINT to a mirror" in said
    assert "or give a local file or folder with --source" in said
    said = run(FETCH, tmp_path, endpoint, "org/name", "", "*", HF_HUB_OFFLINE="1")
    assert "dataset org/name: the cache does not have all of it, and HF_HUB_OFFLINE forbids asking the hub" in said


def test_a_commit_in_full_is_not_asked_for_again_and_again_where_there_is_no_network(tmp_path: Path) -> None:
    started = time.monotonic()
    assert "cannot be reached" in run(FETCH, tmp_path, OFFLINE_HOST, "org/name", COMMIT, "*")
    assert time.monotonic() - started < 30  # huggingface_hub tries for a minute, and more, by itself


def test_a_cache_that_may_lack_files_is_not_trained_on(endpoint: str, tmp_path: Path) -> None:
    run(FETCH, tmp_path, endpoint, "org/name", "", "**/*.jsonl")
    shutil.rmtree(tmp_path / "hub" / "datasets--org--name" / "trees")
    said = run(FETCH, tmp_path, OFFLINE_HOST, "org/name", COMMIT, "**/*.jsonl")
    assert "in the cache without a list of its files, so that some may be missing" in said
    assert "--source" in said


def test_a_model_that_cannot_be_had_is_one_line_too(endpoint: str, tmp_path: Path) -> None:
    assert "model org/gated: gated" in run(CONFIG, tmp_path, endpoint, "org/gated")
    assert "model org/missing: not found on" in run(CONFIG, tmp_path, endpoint, "org/missing")
    said = run(CONFIG, tmp_path, OFFLINE_HOST, "org/name")
    assert f"model org/name: {OFFLINE_HOST} cannot be reached" in said
    assert "name a local folder in model.path" in said


def test_an_optional_file_is_not_taken_for_missing_for_want_of_a_network(endpoint: str, tmp_path: Path) -> None:
    assert run(OPTIONAL, tmp_path, endpoint, "org/name", "README.md") == "True"
    assert run(OPTIONAL, tmp_path, endpoint, "org/name", "generation_config.json") == "False"
    said = run(OPTIONAL, tmp_path / "other", OFFLINE_HOST, "org/name", "generation_config.json")
    assert said.startswith(f"refused: model org/name: {OFFLINE_HOST} cannot be reached")

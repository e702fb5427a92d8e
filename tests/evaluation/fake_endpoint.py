"""An OpenAI-compatible server in a thread, whose answers tests choose."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any, dict[str, str]]
"""Status, body (JSON, or bytes as they are), headers; status 0 closes the connection without an answer."""
Script = Callable[[int, str, dict[str, Any]], Reply | None]
"""(number of the POST, its path, its body) -> a reply, or None for a good one."""


class FakeEndpoint:
    """Counts and keeps what it was asked."""

    def __init__(self, script: Script = lambda number, path, body: None) -> None:
        self.script = script
        self.cards: Any = {"data": [{"id": "served", "owned_by": "vllm", "max_model_len": 4096}]}
        self.posts: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """What a POST is answered."""
        with self.lock:
            self.posts.append((path, body, headers))
            number = len(self.posts) - 1
        return self.script(number, path, body) or good(body)


def good(body: dict[str, Any], reason: str = "stop", **changes: Any) -> Reply:
    """A response that depends on the seed alone."""
    text = f"Answer: {body['seed'] % 3}"
    said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    tokens = 3 + body["seed"] % 4
    reply = {"choices": [{"index": 0, **said, "finish_reason": reason}], "usage": {"completion_tokens": tokens}}
    return 200, reply | changes, {}


def failure(status: int, message: str = "", **headers: str) -> Reply:
    """An error as vLLM words it."""
    return status, {"error": {"message": message}}, {key.replace("_", "-"): value for key, value in headers.items()}


def _handler(fake: FakeEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *rest: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(fake.cards if isinstance(fake.cards, tuple) else (200, fake.cards, {}))

        def do_POST(self) -> None:
            with fake.lock:
                fake.under_way += 1
                fake.most_under_way = max(fake.most_under_way, fake.under_way)
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = fake.answer(self.path, body, dict(self.headers))
            finally:
                with fake.lock:
                    fake.under_way -= 1
            self._send(reply)

        def _send(self, reply: Reply) -> None:
            status, body, headers = reply
            if status == 0:
                return
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *rest: Any) -> None:
        """A client that went away is no news."""


@contextmanager
def listening(fake: FakeEndpoint, port: int = 0) -> Iterator[str]:
    """Inside, `fake` is served at the URL given."""
    server = _Server(("127.0.0.1", port), _handler(fake))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

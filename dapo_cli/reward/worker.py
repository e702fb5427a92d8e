"""The processes in which an answer may hang or take all memory it is given. Started by `pool`, never imported by it.

One nursery per pool imports what scoring needs, once, and forks a worker whenever asked; a fork takes milliseconds, so
a killed worker is soon replaced. The nursery alone kills and reaps, so that no process id is ever killed after it has
been given to somebody else. It ends, with all its workers, when the pool's end of the socket closes, however that came.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

READY = b"ready"
LENGTH = struct.Struct("!I")


def main(control_fd: int, scorer: str, memory_limit_bytes: int) -> None:
    """Serve one pool until its socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    try:
        preload(scorer)
    except BaseException as error:
        control.send(f"{type(error).__name__}: {error}".encode()[:4000])
        return
    control.send(READY)
    workers: set[int] = set()
    while True:
        request, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            break
        _reap(workers)
        if fds:
            pid = _fork(control, fds[0], memory_limit_bytes)
            os.close(fds[0])
            workers.add(pid)
            control.send(str(pid).encode())
        else:
            _kill(int(request), workers)
            control.send(b"gone")
    for pid in list(workers):
        _kill(pid, workers)


def preload(scorer: str) -> None:
    """Import what the scorer needs.

    Raises:
        ImportError: it is not there.
    """
    from dapo_cli.reward import custom, symbolic

    if scorer == "math_verify":
        symbolic.load()
        # The first parse builds tables that every worker then shares.
        symbolic.judge("Answer: $\\frac{2}{4}$", "\\frac{1}{2}")
    else:
        custom.load(scorer)


def _fork(control: socket.socket, fd: int, memory_limit_bytes: int) -> int:
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a worker does not outlive its nursery
        if os.getppid() == nursery:
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            serve(socket.socket(fileno=fd))
    finally:
        os._exit(0)


def _reap(workers: set[int]) -> None:
    for pid in list(workers):
        if os.waitpid(pid, os.WNOHANG)[0]:
            workers.discard(pid)


def _kill(pid: int, workers: set[int]) -> None:
    if pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        workers.discard(pid)


def serve(connection: socket.socket) -> None:
    """Answer requests one after the other until the other end closes."""
    while (request := receive(connection)) is not None:
        send(connection, answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the requested scorer says; its failures become `verifier_error` with a reason."""
    from dapo_cli.reward import custom, symbolic

    try:
        if "describe" in request:
            return {"description": symbolic.describe(request["describe"])[:2000]}
        if request["scorer"] == "math_verify":
            return symbolic.judge(request["response"], request["ground_truth"])
        return custom.judge(request["scorer"], request["response"], request["ground_truth"], request["problem"])
    except MemoryError:
        return {"outcome": "verifier_error", "error": "the memory limit was reached"}
    except BaseException as error:
        return {"outcome": "verifier_error", "error": f"{type(error).__name__}: {error}"[:500]}


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """One JSON message with its length before it. Lone surrogates survive, as JSON escapes."""
    body = json.dumps(message).encode("ascii")
    connection.sendall(LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other end has closed.

    Raises:
        TimeoutError: the connection has a timeout and it ran out.
    """
    header = _exactly(connection, LENGTH.size)
    if header is None:
        return None
    body = _exactly(connection, LENGTH.unpack(header)[0])
    return None if body is None else json.loads(body)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

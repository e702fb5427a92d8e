"""A pool of worker processes with a clock and a memory limit for each verdict.

Any thread may submit, also inside a Ray actor or next to an event loop (`asyncio.wrap_future`): no signal and no fork
of the calling process is involved. A worker over its time is killed and replaced; the others go on.
"""

from __future__ import annotations

import atexit
import os
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.reward import worker

START_SECONDS = 120
"""How long the imports of a pool may take."""

REQUESTS_PER_WORKER = 1000
"""A worker is replaced after so many, which bounds what caches and leaks add up to."""

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool is for and what each of its verdicts may take."""

    scorer: str
    workers: int
    time_limit_seconds: float
    memory_limit_bytes: int
    """Of address space, the imports included."""


class WorkerPool:
    """Verdicts of one scorer, computed in `settings.workers` processes; they start with the first submission."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._tasks: queue.SimpleQueue[tuple[Reply, Future[Reply]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._nursery_lock = threading.Lock()
        """Held while imports run; no submission waits for it."""
        self._nursery: _Nursery | None = None
        self._closed = False

    def submit(self, request: Reply) -> Future[Reply]:
        """Have a request of `worker.answer` answered; the future's result has an `outcome`, also after a kill.

        The future raises UsageError when the scorer cannot be imported.

        Raises:
            RuntimeError: the pool is closed.
        """
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool of scoring workers is closed")
            if len(self._threads) < self.settings.workers:
                name = f"score-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._tasks.put((request, future))
        return future

    def close(self) -> None:
        """End every process and thread; requests without an answer are cancelled or get a `verifier_error`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)
        with self._nursery_lock:
            if self._nursery is not None:
                self._nursery.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        connection: _Worker | None = None
        while (task := self._tasks.get()) is not None:
            request, future = task
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if connection is None:
                    connection = _Worker(self._running_nursery())
                reply = connection.ask(request, self.settings.time_limit_seconds)
            except DapoError as error:
                future.set_exception(error)
                continue
            if connection.used_up:
                connection.close()
                connection = None
            future.set_result(reply)
        if connection is not None:
            connection.close()

    def _running_nursery(self) -> _Nursery:
        with self._nursery_lock:
            if self._closed:
                raise DapoError("the pool of scoring workers was closed")
            if self._nursery is None or not self._nursery.alive:
                self._nursery = _Nursery(self.settings)
            return self._nursery


class _Nursery:
    """The process that forks workers, seen from the pool."""

    def __init__(self, settings: PoolSettings) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(theirs.fileno()), settings.scorer, str(settings.memory_limit_bytes)]
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        # -P: a file of the working folder must not hide a module of the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", worker.__name__, *arguments],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        self._lock = threading.Lock()
        ours.settimeout(START_SECONDS)
        first = self._received()
        if first != worker.READY:
            self.close()
            reason = first.decode(errors="replace") or "it ended while it was starting"
            hint = "pip install -e '.[math]'" if settings.scorer == "math_verify" else "see docs/reward.md"
            raise UsageError(f"reward.scorer: {settings.scorer} cannot be loaded: {reason}", hint=hint)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def fork(self, connection: socket.socket) -> int:
        """A new worker that serves `connection`; returns its process id."""
        with self._lock:
            socket.send_fds(self._control, [b"fork"], [connection.fileno()])
            return int(self._received() or b"0")

    def kill(self, pid: int) -> None:
        """Kill a worker that may have ended already."""
        with self._lock:
            self._control.send(str(pid).encode())
            self._received()

    def close(self) -> None:
        """End the process and all its workers."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _received(self) -> bytes:
        try:
            return self._control.recv(4096)
        except TimeoutError as error:
            raise DapoError(f"scoring workers did not start in {START_SECONDS} s") from error


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self, nursery: _Nursery) -> None:
        self._nursery = nursery
        self._requests = 0
        self.used_up = False
        """Whether another request needs another worker."""
        self._connection, theirs = socket.socketpair()
        try:
            self._pid = nursery.fork(theirs)
        except OSError as error:
            self._connection.close()
            raise DapoError(f"scoring workers: no process could be started: {error}") from error
        finally:
            theirs.close()

    def ask(self, request: Reply, time_limit_seconds: float) -> Reply:
        """The worker's reply, or a `verifier_error` once the time is up or the worker has died."""
        self._requests += 1
        self.used_up = self._requests >= REQUESTS_PER_WORKER
        error = "the worker process died"
        try:
            self._connection.settimeout(time_limit_seconds)
            worker.send(self._connection, request)
            reply = worker.receive(self._connection)
            if reply is not None:
                return reply
        except TimeoutError:
            error = f"the time limit of {time_limit_seconds:g} s was reached"
        except OSError:
            pass
        self.used_up = True
        self._kill()
        return {"outcome": "verifier_error", "error": error}

    def close(self) -> None:
        """Let the worker go: it ends when it reads the end of its connection."""
        self._connection.close()

    def _kill(self) -> None:
        try:
            self._nursery.kill(self._pid)
        except OSError:
            return  # the nursery is gone, and its workers with it


_pools: dict[tuple[int, PoolSettings], WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(settings: PoolSettings) -> WorkerPool:
    """The process's pool of these settings. A forked child gets its own."""
    with _pools_lock:
        return _pools.setdefault((os.getpid(), settings), WorkerPool(settings))


@atexit.register
def close_pools() -> None:
    """End the shared pools of this process; later submissions start new ones."""
    with _pools_lock:
        mine = [_pools.pop(key) for key in list(_pools) if key[0] == os.getpid()]
    for pool in mine:
        pool.close()

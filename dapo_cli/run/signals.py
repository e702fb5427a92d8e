"""Stopping a run without losing what it learned.

Ctrl-C, SIGTERM and SIGHUP (a closed terminal) only raise a flag. The loop asks for it between stages
(`raise_if_requested`), so it stops at the end of the stage that is running, and saves the state of the last step that
was finished. A Ctrl-C after that aborts at once; what was saved before is then where `--resume` continues.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from dapo_cli.errors import DapoError

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class StopRequested(DapoError):
    """The run was asked to stop, and did at a safe point (exit code 130)."""

    exit_code = 130


def write_to_terminal(text: str) -> None:
    """Show `text` on standard error; safe inside a signal handler, where `print` may be entered twice."""
    os.write(2, f"\n{text}\n".encode())


class StopSignals:
    """While the body runs, the first Ctrl-C or SIGTERM is remembered; a Ctrl-C after that aborts.

    Handlers exist in the main thread only: in another thread nothing is caught, and only `request` stops the run.
    """

    def __init__(self, announce: Callable[[str], None] = write_to_terminal) -> None:
        """`announce` is called inside the signal handler, with the text for the user."""
        self._announce = announce
        self._previous: dict[signal.Signals, Any] = {}
        self.reason: str | None = None
        """Why the run should stop; None: it should not."""

    @property
    def requested(self) -> bool:
        """Whether the run should stop at the next safe point."""
        return self.reason is not None

    def request(self, reason: str) -> None:
        """Ask to stop for `reason`, such as a time limit; the first reason stays."""
        self.reason = self.reason or reason

    def raise_if_requested(self) -> None:
        """Call at safe points.

        Raises:
            StopRequested: a stop was asked for.
        """
        if self.reason is not None:
            raise StopRequested(f"stopped by {self.reason}")

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        name = _SIGNALS[signal.Signals(number)]
        self.request(name)
        self._announce(f"{name}: stopping after this stage, then saving; Ctrl-C again aborts at once")

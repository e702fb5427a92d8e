"""What a person sees while a run trains: a live view on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from dapo_cli.run.files import print_note
from dapo_cli.run.view import View, plain_line, render

REFRESHES_PER_SECOND = 2
"""Each costs about a millisecond, so the view stays far below 1% of the run's time."""


class Console:
    """Shows a run. On a terminal `stream` (default: standard output) it draws a live view and prints notes above it;
    elsewhere it prints one line per step and nothing else, and notes go to standard error.
    """

    def __init__(self, title: str, total_steps: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (closed standard output)
        self._rich = RichConsole(file=self._stream, highlight=False)
        self._live: Live | None = None
        self._view = View(title, total_steps, ascii_only=not self._rich.encoding.startswith("utf"))
        self._step_seconds: deque[float] = deque(maxlen=20)
        self._step_ended = time.monotonic()

    def __enter__(self) -> Console:
        self._step_ended = time.monotonic()
        if self._stream.isatty() and not self._rich.is_dumb_terminal:
            self._live = Live(get_renderable=self._render, console=self._rich, refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.stage = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """Show something the user should know."""
        if self._live is None:
            print_note(text)
        else:
            self._rich.print(Text(text))

    def stage(self, name: str) -> None:
        """Show which stage is running."""
        self._view.stage = name
        self._view.stage_started = time.monotonic()

    def evaluation(self, name: str, metrics: Mapping[str, Any]) -> None:
        """Show a finished evaluation of benchmark `name` in the live view; elsewhere the step's line holds it."""
        self._view.set_evaluation({key: value for key, value in metrics.items() if key.startswith(f"eval/{name}/")})

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Show a finished step: its line of `metrics.jsonl`."""
        now = time.monotonic()
        step = int(metrics["step"])
        if step > 0:
            self._step_seconds.append(now - self._step_ended)
            left = (self._view.total_steps - step) * sum(self._step_seconds) / len(self._step_seconds)
            self._view.seconds_left = left
        self._step_ended = now
        self._view.set_step(metrics)
        if self._live is None:
            self._print(plain_line(metrics, self._view.total_steps))

    def _print(self, line: str) -> None:
        """Print; an output that was closed or is full must not cost the run."""
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            self._stream = open(os.devnull, "w")  # noqa: SIM115 (lives as long as the process)
            print_note(f"standard output: {error.strerror}; training goes on without it, metrics.jsonl has every step")

    def stopping(self, text: str) -> None:
        """Show that the run is about to stop; may be called inside a signal handler."""
        self._view.stopping = text
        if self._live is None:
            os.write(2, f"{text}\n".encode())

    def _render(self) -> Text:
        return render(self._view, time.monotonic(), self._rich.width)

"""`dapo watch`: a run seen from another terminal, by reading its files only."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console as RichConsole
from rich.live import Live

from dapo_cli.recipe.loading import load_recipe
from dapo_cli.run import directory
from dapo_cli.run.console import REFRESHES_PER_SECOND
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.lock import LOCK_FILE
from dapo_cli.run.view import View, duration, plain_line, render

State = Literal["waiting", "running", "finished", "stopped", "elsewhere"]
_RECENT_STEPS = 20


@dataclass(slots=True)
class Tail:
    """The lines of a metrics.jsonl as they come; a line counts once its end is there."""

    path: Path
    _inode: int = -1
    _place: int = 0

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file began anew (another file, or a shorter one, as after a resume), and its new lines."""
        try:
            status = self.path.stat()
        except OSError:
            return False, []
        anew = status.st_ino != self._inode or status.st_size < self._place
        if anew:
            self._inode, self._place = status.st_ino, 0
        with self.path.open("rb") as file:
            file.seek(self._place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return anew, [row for line in whole.splitlines() if (row := _parse(line)) is not None]


@dataclass(slots=True)
class Watch:
    """What is known of a run by its files."""

    run: RunDirectory
    view: View
    tail: Tail
    _ended: list[tuple[int, float]] = field(default_factory=list)
    """(step, seconds of it) of the last steps."""

    @classmethod
    def of(cls, path: Path, ascii_only: bool) -> Watch:
        """A watch on the run in `path`.

        Raises:
            DapoError: its recipe cannot be read.
        """
        run = RunDirectory.open(path)
        steps = load_recipe(run.recipe_file).recipe.train.steps
        return cls(run, View(path.resolve().name, steps, ascii_only), Tail(run.metrics_file))

    def look(self) -> list[dict[str, Any]]:
        """Take up what has come since the last look; returns the new lines."""
        anew, rows = self.tail.read()
        if anew:
            self.view = View(self.view.title, self.view.total_steps, self.view.ascii_only)
            self._ended = []
        for row in rows:
            self.view.set_step(row)
            if row["step"] > 0:
                self._ended = [*self._ended, (int(row["step"]), float(row.get("time/step") or 0.0))][-_RECENT_STEPS:]
        state = self.state()
        self.view.seconds_left = self._seconds_left() if state == "running" else None
        self.view.stopping = self._words(state)
        return rows

    def state(self) -> State:
        """Whether somebody works on the run, by the process that its lock file names."""
        if int(self.view.row.get("step", 0)) >= self.view.total_steps:
            return "finished"
        try:
            pid, host = (self.run.path / LOCK_FILE).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return "waiting"
        if host != platform.node():
            return "elsewhere"
        return "running" if _alive(int(pid)) else "stopped"

    def _seconds_left(self) -> float | None:
        if not self._ended:
            return None
        mean = sum(seconds for _, seconds in self._ended) / len(self._ended)
        return (self.view.total_steps - self._ended[-1][0]) * mean

    def _words(self, state: State) -> str | None:
        try:
            age = duration(max(0.0, time.time() - self.run.metrics_file.stat().st_mtime))
        except OSError:
            age = None
        last = "no step yet" if age is None else f"last step written {age} ago"
        return {
            "waiting": "waiting: nothing has been written yet",
            "running": last,
            "finished": "finished",
            "stopped": f"not running: stopped or killed; {last}; dapo train RECIPE --resume goes on",
            "elsewhere": f"run by another machine; {last}",
        }[state]


def watch(path: Path, seconds: float, once: bool, stream: TextIO | None = None) -> None:
    """Show the run in `path` until it has ended, or once; on a terminal as a live view, elsewhere a line per step.

    Raises:
        UsageError: there is no run, with `once`; else it is waited for.
    """
    out = stream or sys.stdout
    console = RichConsole(file=out, highlight=False)
    if not once and not directory.is_run(path):
        console.print(f"{path}: no run yet, waiting")
        while not directory.is_run(path):
            time.sleep(seconds)
    watched = Watch.of(path, ascii_only=not console.encoding.startswith("utf"))
    if once:
        watched.look()
        console.print(render(watched.view, 0.0, console.width))
    elif out.isatty() and not console.is_dumb_terminal:
        with Live(
            get_renderable=lambda: render(watched.view, 0.0, console.width),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
        ):
            _follow(watched, seconds, lambda row: None)
    else:
        _follow(watched, seconds, lambda row: print(plain_line(row, watched.view.total_steps), file=out, flush=True))
        console.print(watched.view.stopping)


def _follow(watched: Watch, seconds: float, show: Callable[[dict[str, Any]], None]) -> None:
    while True:
        for row in watched.look():
            show(row)
        if watched.state() in ("finished", "stopped"):
            return
        time.sleep(seconds)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None

"""What the live view of `dapo train` costs: one frame of a long run, times the frames of a second.

python benchmarks/live_view.py [--steps 5000]
"""

from __future__ import annotations

import argparse
import io
import math
import time

from rich.console import Console

from dapo_cli.run.console import REFRESHES_PER_SECOND
from dapo_cli.run.view import CURVES, View, render


def main() -> None:
    """Draw frames of 80 and 200 columns, and print their share of a second; then the cost of a step's line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    steps = parser.parse_args().steps
    view = View("demo", steps)
    started = time.perf_counter()
    for step in range(steps):
        view.set_step({"step": step, "time/generate": 1.0} | {key: math.sin(step / 50) for _, key in CURVES})
    per_step = (time.perf_counter() - started) / steps
    for columns in (80, 200):
        console = Console(file=io.StringIO(), width=columns, force_terminal=True)
        started = time.perf_counter()
        for _ in range(200):
            console.print(render(view, 1.0, columns))
        frame = (time.perf_counter() - started) / 200
        share = f"{100 * frame * REFRESHES_PER_SECOND:.2f}% of the time at {REFRESHES_PER_SECOND} a second"
        print(f"{columns} columns: {1e3 * frame:.2f} ms a frame, {share}")
    print(f"{1e6 * per_step:.1f} microseconds to take up a step")


if __name__ == "__main__":
    main()

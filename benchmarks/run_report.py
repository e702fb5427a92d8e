"""How long the HTML report of a long run takes, and how much memory.

    python benchmarks/run_report.py [--steps 5000] [--rollouts 100000] [--characters 3000]

Writes a made-up run, and makes its report in a process of its own, whose peak memory is the whole process.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
TIMED = """
import re, sys, time
from pathlib import Path
from dapo_cli.report.page import write_report
started = time.perf_counter()
out = Path(sys.argv[1]).parent / "page.html"
[run] = write_report([Path(sys.argv[1])], out, None, print)
seconds = time.perf_counter() - started
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
print(f"{seconds:.1f} s, peak memory {peak} MiB, page {out.stat().st_size / 1e6:.1f} MB, "
      f"{len(run.data['rollouts'])} rollouts on it")
"""


def main() -> None:
    """Make the run, time its report in a fresh process, and print both."""
    sys.path += [str(TESTS / "report"), str(TESTS / "policy")]
    from fake_run import make_run, rollout, row

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--characters", type=int, default=3000)
    asked = parser.parse_args()
    chance = random.Random(0)
    words = ["so", "the", "sum", "is", "wait", "check", "12", "therefore", "x", "="]
    texts = [" ".join(chance.choices(words, k=asked.characters // 4)) for _ in range(50)]
    per_step = asked.rollouts // asked.steps
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run", [row(step) for step in range(1, asked.steps + 1)], {})

        for step in range(1, asked.steps + 1):
            lines = [
                rollout(
                    f"p{chance.randrange(2000)}",
                    n,
                    chance.choice(["right", "wrong", "no_answer"]),
                    response=chance.choice(texts),
                    tokens=chance.randrange(5000),
                    reward=chance.uniform(-2, 1),
                )
                for n in range(per_step)
            ]
            (run.rollouts / f"step_{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        size = sum(path.stat().st_size for path in run.rollouts.iterdir())
        print(f"{asked.steps} steps, {asked.steps * per_step} rollouts, {size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-c", TIMED, str(run.path)], check=True)


if __name__ == "__main__":
    main()

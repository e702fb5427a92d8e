"""How long the HTML report of an evaluation takes, and how much memory.

    python benchmarks/evaluation_report.py [--problems 30] [--samples 32] [--words 20480]

Writes a made-up evaluation whose responses all have `--words` words of about 3.5 characters, a word for a token,
and times `write_html` in a process of its own, whose peak memory is the whole process with Python and its imports.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from dapo_cli.evaluation.samples import SampleRecord

HELPERS = Path(__file__).resolve().parents[1] / "tests" / "evaluation"
TIMED = """
import resource, sys, time
from pathlib import Path
from dapo_cli.evaluation.benchmark import load_benchmark
from dapo_cli.evaluation.html_report import write_html
started = time.perf_counter()
page = write_html(Path(sys.argv[1]), load_benchmark("aime_2024").published)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{seconds:.1f} s, peak memory {peak:.0f} MiB, page {page.stat().st_size / 1e6:.1f} MB")
"""


def main() -> None:
    """Make the evaluation, time its report in a fresh process, and print both."""
    sys.path.append(str(HELPERS))
    from fake_evaluation import SETTINGS_OF_FAKE, WORDS, Fake, write_fake

    def full_length(record: SampleRecord, words: int) -> SampleRecord:
        text = " ".join(random.Random(record.seed).choices(WORDS, k=words))
        return replace(record, response=text, response_tokens=words)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--words", type=int, default=20480)
    asked = parser.parse_args()
    fake = Fake(asked.problems, replace(SETTINGS_OF_FAKE, samples=asked.samples), response_words=1)
    with tempfile.TemporaryDirectory() as folder:
        write_fake(Path(folder), fake, lambda record: full_length(record, asked.words))
        size = (Path(folder) / "samples.jsonl").stat().st_size
        count = asked.problems * asked.samples
        print(f"{count} responses of {asked.words} words, samples.jsonl {size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-c", TIMED, folder], check=True)


if __name__ == "__main__":
    main()

"""How many responses a second each scorer judges, and what random and hostile text costs it.

    python benchmarks/scorers.py [--responses 20000] [--random 100000] [--nested 1000]

One call of `judge_all`, as training makes it: scorers of microseconds run in this process, `math_verify` in its worker
processes, whose memory is limited by reward.memory_limit_bytes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dapo_cli.recipe.schema import Reward
from dapo_cli.reward.scoring import judge_all
from dapo_cli.types import Problem

Case = tuple[str, Problem]
WORDS = ("the", "sum", "of", "x^2", "is", "therefore", "we", "get", "\\frac{1}{2}", "and", "so", "=", "12", "check")


def response(characters: int, ending: str, seed: int) -> str:
    """Text of this length with an answer at its end."""
    words = random.Random(seed).choices(WORDS, k=characters // 4)
    return " ".join(words)[: characters - len(ending)] + ending


def cases(count: int, characters: int, ending: Callable[[int], str], truth: Callable[[int], str]) -> list[Case]:
    """Responses to problems of their own; a hundred texts are made and used in turn."""
    texts = [response(characters, "", number) for number in range(100)]
    return [
        (texts[number % 100] + ending(number), Problem(f"p{number}", "?", (), truth(number), "benchmark"))
        for number in range(count)
    ]


def timed(name: str, what: str, found: Sequence[Case], scorer: str) -> None:
    """Judge all, and print the rate and the outcomes."""
    reward = Reward(scorer=scorer, overlong_buffer_length=1)
    started = time.perf_counter()
    verdicts = judge_all(found, reward)
    seconds = time.perf_counter() - started
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(v.outcome for v in verdicts).most_common())
    print(f"{name:<12} {what:<34} {len(found) / seconds:>9,.0f} /s  ({seconds:.1f} s: {outcomes})", flush=True)


def random_bytes(count: int) -> list[Case]:
    """Random bytes read as text, some of them with an answer line."""
    chance = random.Random(0)
    endings = ("", "\nAnswer: ", "\\boxed{", "$", "\nAnswer: 7")
    texts = [
        chance.randbytes(chance.randrange(200)).decode("utf-8", "replace") + chance.choice(endings)
        for _ in range(count)
    ]
    return [(text, Problem(f"p{number}", "?", (), "7", "benchmark")) for number, text in enumerate(texts)]


def nested(count: int) -> list[Case]:
    """Deeply nested LaTeX in the answer."""
    openings = ("\\frac{1}{", "\\sqrt{", "(", "2^{", "\\left(", "{")
    closings = ("}", "}", ")", "}", "\\right)", "}")
    found = []
    for number in range(count):
        kind, depth = number % len(openings), 1 + number
        text = openings[kind] * depth + "1" + closings[kind] * depth
        found.append((f"so \\boxed{{{text}}}\nAnswer: ${text}$", Problem(f"n{number}", "?", (), "\\frac{1}{2}", "b")))
    return found


def peak_mib() -> int:
    """The most memory that this process has held."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=20_000)
    parser.add_argument("--random", type=int, default=100_000)
    parser.add_argument("--nested", type=int, default=1_000)
    asked = parser.parse_args()
    right = lambda number: f"\nAnswer: {number}"  # noqa: E731
    for scorer in ("dapo", "dapo_2026_08", "integer"):
        timed(scorer, "2,000 characters", cases(asked.responses, 2_000, right, str), scorer)
        timed(scorer, "70,000 characters (20,480 tokens)", cases(asked.responses, 70_000, right, str), scorer)
    boxed = lambda number: f" \\boxed{{{number}}}"  # noqa: E731
    timed("boxed", "2,000 characters", cases(asked.responses, 2_000, boxed, str), "boxed")
    latex = lambda number: f" \\boxed{{\\frac{{{number}}}{{7}}}}"  # noqa: E731
    symbolic = cases(2_000, 2_000, latex, lambda number: f"\\frac{{{2 * number}}}{{14}}")
    timed("math_verify", "warm-up", symbolic[:100], "math_verify")
    timed("math_verify", "fractions, 2,000 characters", symbolic, "math_verify")
    for scorer in ("dapo", "dapo_2026_08", "integer", "boxed", "math_verify"):
        timed(scorer, "random bytes", random_bytes(asked.random), scorer)
        timed(scorer, "nested LaTeX", nested(asked.nested), scorer)
    print(f"peak memory of this process {peak_mib()} MiB")


if __name__ == "__main__":
    main()

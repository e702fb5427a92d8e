"""Print two evaluations side by side: `before_and_after.py BEFORE AFTER`, the folders of their samples and settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from dapo_cli.evaluation.report import comparison_table
from dapo_cli.evaluation.result import EvaluationResult, settings_from_json
from dapo_cli.evaluation.samples import SAMPLES, SETTINGS, read_samples


def read(folder: Path) -> EvaluationResult:
    """The evaluation in a folder, computed from its samples."""
    settings = settings_from_json(json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
    return EvaluationResult.from_samples(settings, read_samples(folder / SAMPLES))


def main() -> None:
    """Print the table."""
    before, after = (read(Path(argument)) for argument in sys.argv[1:])
    Console().print(comparison_table(before, after))


if __name__ == "__main__":
    main()

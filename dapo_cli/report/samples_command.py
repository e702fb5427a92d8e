"""`dapo samples`: rollouts of a run in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dapo_cli.errors import UsageError
from dapo_cli.inference.screen import printable
from dapo_cli.report.rollout_choice import rows_of, spread
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.samples import step_files

Row = dict[str, Any]

ORDERS: dict[str, Callable[[Row], Any]] = {
    "best": lambda row: (-row["reward"], row["tokens"]),
    "worst": lambda row: (row["reward"], -row["tokens"]),
    "longest": lambda row: -row["tokens"],
}
OUTCOMES = ("right", "wrong", "no_answer", "verifier_error")
_HEAD_CHARACTERS, _TAIL_CHARACTERS = 600, 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rollouts are asked for, as it was typed."""

    step: int | None = None
    """None: the newest with rollouts."""
    order: str | None = None
    outcome: str | None = None
    truncated: bool = False
    problem: str | None = None
    limit: int = 5


def find_samples(run: RunDirectory, wanted: Wanted) -> tuple[int, list[Row], int]:
    """The step, its rollouts that are asked for, and how many there were to choose from.

    Without an order they are spread over the step.

    Raises:
        UsageError: no rollouts of this step are stored; names those that are. Or an unknown order or outcome.
        DapoError: a line is not a rollout.
    """
    if wanted.order is not None and wanted.order not in ORDERS:
        raise UsageError(f"--order: want {', '.join(ORDERS)}, got {wanted.order}")
    if wanted.outcome is not None and wanted.outcome not in OUTCOMES:
        raise UsageError(f"--outcome: want {', '.join(OUTCOMES)}, got {wanted.outcome}")
    files = step_files(run)
    if not files:
        raise UsageError(f"{run.path}: no rollouts are stored", hint="tracking.rollouts says which are: sample or all")
    step = max(files) if wanted.step is None else wanted.step
    if step not in files:
        some = ", ".join(map(str, spread(sorted(files), 12)))
        raise UsageError(f"{run.path}: no rollouts of step {step}", hint=f"there are those of {some}")
    rows = [row for _, row in rows_of(files[step]) if _fits(row, wanted)]
    if wanted.order is None:
        return step, spread(rows, wanted.limit), len(rows)
    return step, sorted(rows, key=ORDERS[wanted.order])[: wanted.limit], len(rows)


def _fits(row: Row, wanted: Wanted) -> bool:
    return (
        (wanted.outcome is None or row["outcome"] == wanted.outcome)
        and (not wanted.truncated or row["finish_reason"] == "length")
        and (wanted.problem is None or row["problem_id"].startswith(wanted.problem))
    )


def sample_lines(row: Row, *, full: bool, prompt: bool = True) -> Iterator[str]:
    """A rollout for people; control characters of its text are written out, the middle of a long one is left out."""
    kept = "trained on" if row["kept"] else "not trained on"
    yield f"--- problem {row['problem_id']} sample {row['sample']}: {row['outcome']}, {row['tokens']} tokens, {kept}"
    if prompt:
        yield _text(row["prompt"], full)
        yield "--- response"
    yield _text(row["response"], full)
    prediction = "none" if row["prediction"] is None else printable(str(row["prediction"]))
    ended = "TRUNCATED at the limit" if row["finish_reason"] == "length" else "ended by itself"
    yield f"--- answer {prediction}, right is {printable(str(row['ground_truth']))}; {ended}"
    yield f"--- reward {row['reward']:g} = score {row['score']:g} + overlong penalty {row['overlong_penalty']:g}"
    if row["verifier_error"]:
        yield f"--- verifier error: {printable(row['verifier_error'])}"


def _text(text: str, full: bool) -> str:
    omitted = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if full or omitted <= 0:
        return printable(text)
    head, tail = printable(text[:_HEAD_CHARACTERS]), printable(text[-_TAIL_CHARACTERS:])
    return f"{head}\n[... {omitted:,} characters left out; --full shows them ...]\n{tail}"


def samples_json(step: int, rows: Sequence[Row]) -> str:
    """The rollouts as one JSON object."""
    return json.dumps({"step": step, "rollouts": list(rows)}, ensure_ascii=False, indent=2)

"""`rollouts/step_<n>.jsonl`: what the policy wrote in a step, one object per rollout."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.files import Note, next_free, print_note, write_atomic
from dapo_cli.types import RolloutGroup

Decode = Callable[[npt.NDArray[np.int32]], str]
"""From prompt ids to text."""

_STEP_FILE = re.compile(r"step_(\d+)\.jsonl")


def choose_groups(
    drawn: Sequence[RolloutGroup],
    kept: Sequence[RolloutGroup],
    choice: Literal["all", "sample", "none"],
    sampled_groups: int,
) -> list[RolloutGroup]:
    """The groups to write, in submission order.

    `sample` takes the first of those kept and the first of those that were not, half each (kept has the odd one), so
    that one also sees what dynamic sampling throws away; where one side is short, the other fills.
    """
    if choice == "none":
        return []
    if choice == "all":
        return list(drawn)
    kept_indices = {group.index for group in kept}
    others = [group for group in drawn if group.index not in kept_indices]
    wanted_others = min(len(others), max(sampled_groups // 2, sampled_groups - len(kept)))
    chosen = [*kept[: sampled_groups - wanted_others], *others[:wanted_others]]
    return sorted(chosen, key=lambda group: group.index)


def save_rollouts(
    run: RunDirectory, step: int, groups: Sequence[RolloutGroup], kept: Sequence[RolloutGroup], decode: Decode
) -> dict[str, float]:
    """Write `groups` to the file of `step` and return `rollout/saved_bytes`, the size of all files so far.

    `kept` marks which of them are trained on. Without groups no file is written.

    Raises:
        OSError: the file cannot be written; none is left half-written.
    """
    if groups:
        kept_indices = {group.index for group in kept}
        lines = [json.dumps(row, ensure_ascii=False) for row in rollout_rows(groups, kept_indices, decode)]
        run.rollouts.mkdir(exist_ok=True)
        write_atomic(run.rollouts / f"step_{step}.jsonl", "\n".join(lines) + "\n")
    return {"rollout/saved_bytes": sum(path.stat().st_size for path in step_files(run).values())}


def step_files(run: RunDirectory) -> dict[int, Path]:
    """Rollout files by step."""
    if not run.rollouts.is_dir():
        return {}
    with os.scandir(run.rollouts) as entries:
        matches = [(_STEP_FILE.fullmatch(entry.name), entry.path) for entry in entries]
    return {int(match[1]): Path(path) for match, path in matches if match}


def move_rollouts_after(run: RunDirectory, step: int | None, note: Note = print_note) -> Path | None:
    """Move the files after `step` (None: all) to `rollouts.after-<step>.<n>/` before a resume.

    Returns that folder, or None when there was nothing to move.
    """
    late = [path for saved, path in sorted(step_files(run).items()) if step is None or saved > step]
    if not late:
        return None
    since = "start" if step is None else str(step)
    aside = next_free(run.path, f"rollouts.after-{since}.{{}}")
    aside.mkdir()
    for path in late:
        os.rename(path, aside / path.name)
    note(f"{run.rollouts}: {len(late)} files after step {since} moved to {aside.name}")
    return aside


def rollout_rows(groups: Sequence[RolloutGroup], kept_indices: set[int], decode: Decode) -> Iterator[dict[str, Any]]:
    """What a file of rollouts says of each, group by group."""
    for group in groups:
        prompt = decode(group.prompt_ids)
        for sample, rollout in enumerate(group.rollouts):
            verdict = rollout.scored
            yield {
                "problem_id": group.problem.problem_id,
                "group": group.index,
                "sample": sample,
                "kept": group.index in kept_indices,
                "prompt": prompt,
                "response": rollout.response,
                "ground_truth": group.problem.ground_truth,
                "prediction": verdict.prediction,
                "outcome": verdict.outcome,
                "verifier_error": verdict.error,
                "score": verdict.score,
                "overlong_penalty": rollout.overlong_penalty,
                "reward": rollout.reward,
                "tokens": len(rollout.response_ids),
                "finish_reason": rollout.finish_reason,
                "policy_version": rollout.policy_version,
            }

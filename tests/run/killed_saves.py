"""Saves a checkpoint in a child that is killed at its k-th file operation, for every k; prints what is found then.

Usage: killed_saves.py FOLDER STEP LAST BEST. FOLDER gets one run per k, each with complete checkpoints 1, the best, and
2; STEP is what the child saves, LAST and BEST what it keeps. One JSON object per line: the dictionary below.
"""

import json
import os
import signal
import sys
from pathlib import Path

from dapo_cli.run.checkpoints import Keep, newest_complete, save_checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.integrity import find_damage, sealed_metric

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


def write(version):
    def put(folder):
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_bytes(version.encode() * 1000)

    return put


def save(run, step, version, keep):
    metric = ("eval/heldout/avg@4", {1: 0.9, 2: 0.5, 3: 0.7}[step])
    return save_checkpoint(run, step, write(version), {"version": version}, keep, metric)


def child(run, step, keep, k):
    seen = 0

    def kill_at(event, arguments):
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == k:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at)
    save(run, step, "new", keep)
    os._exit(0)


def main(folder, step, keep):
    k, finished = 0, False
    while not finished:
        k += 1
        run = RunDirectory.create(folder / str(k), "", {})
        for old in (1, 2):
            save(run, old, "old", Keep("all"))
        pid = os.fork()
        if pid == 0:
            child(run, step, keep, k)
        finished = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        newest = newest_complete(run, note=lambda text: None)
        names = sorted(entry.name for entry in run.checkpoints.iterdir())
        sealed = [int(path.parent.name[5:]) for path in run.checkpoints.glob("step_*/manifest.json")]
        liars = [s for s in sealed if find_damage(run.checkpoints / f"step_{s}", s, check_hashes=True)]
        version = newest.state["version"] if newest else None
        weights = (newest.path / "model" / "weights.bin").read_bytes()[:3].decode() if newest else None
        first = run.checkpoints / "step_1"
        best = sealed_metric(first) if find_damage(first, 1, check_hashes=True) is None else None
        after = save(run, step, "again", keep)
        print(
            json.dumps(
                {
                    "k": k,
                    "finished": finished,
                    "newest": newest.step if newest else None,
                    "version": version,
                    "weights": weights,
                    "names": names,
                    "best": best,
                    "sealed_but_damaged": liars,
                    "again": newest_complete(run).state["version"],
                    "names_after": sorted(entry.name for entry in after.path.parent.iterdir()),
                }
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Keep(int(sys.argv[3]), int(sys.argv[4])))

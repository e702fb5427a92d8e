"""Saves a checkpoint in a child that is killed at its k-th file operation, for every k; prints what is found then.

Usage: killed_saves.py FOLDER STEP. FOLDER gets one run per k, each with complete checkpoints 1 and 2; STEP is what the
child saves. One JSON object per line: the dictionary below.
"""

import json
import os
import signal
import sys
from pathlib import Path

from dapo_cli.run.checkpoints import Keep, newest_complete, save_checkpoint
from dapo_cli.run.directory import RunDirectory
from dapo_cli.run.integrity import find_damage

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


def write(version):
    def put(folder):
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_bytes(version.encode() * 1000)

    return put


def child(run, step, k):
    seen = 0

    def kill_at(event, arguments):
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == k:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at)
    save_checkpoint(run, step, write("new"), {"version": "new"}, Keep(2))
    os._exit(0)


def main(folder, step):
    k, finished = 0, False
    while not finished:
        k += 1
        run = RunDirectory.create(folder / str(k), "", {})
        for old in (1, 2):
            save_checkpoint(run, old, write("old"), {"version": "old"}, Keep(2))
        pid = os.fork()
        if pid == 0:
            child(run, step, k)
        finished = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        newest = newest_complete(run, note=lambda text: None)
        names = sorted(entry.name for entry in run.checkpoints.iterdir())
        sealed = [int(path.parent.name[5:]) for path in run.checkpoints.glob("step_*/manifest.json")]
        liars = [s for s in sealed if find_damage(run.checkpoints / f"step_{s}", s, check_hashes=True)]
        version = newest.state["version"] if newest else None
        weights = (newest.path / "model" / "weights.bin").read_bytes()[:3].decode() if newest else None
        after = save_checkpoint(run, step, write("again"), {"version": "again"}, Keep(2))
        print(
            json.dumps(
                {
                    "k": k,
                    "finished": finished,
                    "newest": newest.step if newest else None,
                    "version": version,
                    "weights": weights,
                    "names": names,
                    "sealed_but_damaged": liars,
                    "again": newest_complete(run).state["version"],
                    "names_after": sorted(entry.name for entry in after.path.parent.iterdir()),
                }
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

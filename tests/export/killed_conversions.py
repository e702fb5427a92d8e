"""Converts a run in children that are killed at random file operations; prints what is found each time.

Usage: killed_conversions.py FOLDER KILLS. FOLDER/run is a run with a checkpoint. One JSON object per line.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from dapo_cli.export import streamed_folder
from dapo_cli.export.command import convert_run

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


def child(folder, die_at, counter):
    seen = 0

    def count(event, arguments):
        nonlocal seen
        if event in EVENTS and any(".out.partial" in str(each) for each in arguments):
            seen += 1
            if seen == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    convert_run(str(folder / "run"), folder / "out", "float32", lambda text: None)
    counter.write_text(str(seen))
    os._exit(0)


def convert_in_child(folder, die_at):
    """How many operations there were, None if it was killed."""
    counter = folder / "count"
    counter.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        child(folder, die_at, counter)
    os.waitpid(pid, 0)
    return int(counter.read_text()) if counter.exists() else None


def loads(folder, expected):
    """What somebody who loads a folder gets: nothing, the right model, or a wrong one."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except Exception:
        return "nothing"
    found = model.state_dict()
    same = not info["missing_keys"] and all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    return "right" if same else "wrong"


def remove(folder):
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def main(folder, kills):
    torch.set_num_threads(1)
    streamed_folder.MAX_FILE_BYTES = 20_000  # several files and an index
    expected = AutoModelForCausalLM.from_pretrained(folder / "base").state_dict()
    operations = convert_in_child(folder, None)
    for die_at in sorted(random.Random(0).sample(range(1, operations + 1), kills)):
        remove(folder / "out")
        convert_in_child(folder, die_at)
        found = {
            "die_at": die_at,
            "of": operations,
            "out": loads(folder / "out", expected) if (folder / "out").exists() else "absent",
            "partial": loads(folder / ".out.partial", expected),
        }
        remove(folder / "out")
        convert_in_child(folder, None)
        found["again"] = loads(folder / "out", expected)
        found["left"] = sorted(path.name for path in folder.iterdir() if "partial" in path.name)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

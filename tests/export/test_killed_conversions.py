import json
import os
import subprocess
import sys

import killed_conversions
from own_runs import checkpoint_of, make_run


def test_a_conversion_killed_at_any_moment_leaves_no_folder_that_is_wrong(models, tokenizer, tmp_path):
    models["llama"].save_pretrained(tmp_path / "base")
    run = make_run(tmp_path / "run", tmp_path / "base", tokenizer)
    checkpoint_of(run, models["llama"])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, killed_conversions.__file__, str(tmp_path), "10"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 10
    assert found[-1]["of"] > 30
    for each in found:
        assert each["out"] in ("absent", "right"), each
        assert each["partial"] in ("nothing", "right"), each
        assert (each["again"], each["left"]) == ("right", []), each
    assert {"absent", "nothing"} <= {each["out"] for each in found} | {each["partial"] for each in found}

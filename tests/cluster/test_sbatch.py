"""The Slurm script with stand-ins for srun, scontrol, ray, dapo and the wait for nodes, which record their calls."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "cluster" / "dapo.sbatch"

STAND_INS = {
    "scontrol": """
        echo "scontrol $*" >> "$CALLS"
        if [ "$1" = show ]; then for number in $(seq 1 "$NODES"); do echo "node$number"; done; fi
    """,
    "srun": """
        echo "srun $*" >> "$CALLS"
        while [ "${1#--}" != "$1" ]; do shift; done
        exec "$@"
    """,
    "ray": """
        echo "ray $*" >> "$CALLS"
        trap 'echo "ray stopped" >> "$CALLS"; exit 0' TERM
        while true; do sleep 0.05; done
    """,
    "python": """
        case "$*" in
          *await_nodes*) echo "python $*" >> "$CALLS"; sleep 0.3; [ "$AWAIT" = ok ] || { echo "missing: node2" >&2; exit 1; } ;;
          *) echo 0123abc ;;
        esac
    """,
    "dapo": """
        echo "dapo $(printf '[%s]' "$@") RAY_ADDRESS=$RAY_ADDRESS" >> "$CALLS"
        stat -c %a "$RAY_AUTH_TOKEN_PATH" >> "$CALLS"
        trap 'echo "dapo saves" >> "$CALLS"; sleep 0.3; exit 130' TERM
        if [ "$DRIVER" = wait ]; then while true; do sleep 0.05; done; fi
        exit "$DRIVER"
    """,
}


@pytest.fixture
def job(tmp_path):
    """Start the script with these arguments and settings; the process and its record of calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STAND_INS.items():
        (folder / name).write_text("#!/usr/bin/env bash\n" + body)
        (folder / name).chmod(0o755)
    calls = tmp_path / "calls"
    started = []

    def start(*arguments, nodes=3, driver="0", await_nodes="ok"):
        environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "NODES": str(nodes),
            "DRIVER": driver,
            "AWAIT": await_nodes,
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "node[1-3]",
        }
        process = subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, calls

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def finish(process, calls):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, calls.read_text().splitlines() if calls.exists() else []


def test_ray_starts_everywhere_then_all_nodes_are_awaited_then_the_driver_runs(job, tmp_path):
    code, _, _, lines = finish(*job("recipes/a b.yaml", "--set", "train.steps=3"))
    assert code == 0
    kinds = [line.split()[0] for line in lines]
    assert kinds.index("python") < kinds.index("dapo")
    head = next(line for line in lines if line.startswith("ray start --head"))
    assert "--node-ip-address=node1 --port=6379" in head
    workers = next(line for line in lines if line.startswith("srun"))
    assert "--nodes=2 --ntasks=2 --nodelist=node2,node3" in workers
    assert "ray start --block --address=node1:6379" in workers
    assert "python -m dapo_cli.backend.await_nodes --seconds 600 node1 node2 node3" in lines
    assert "dapo [train][recipes/a b.yaml][--set][train.steps=3][--resume] RAY_ADDRESS=node1:6379" in lines
    assert lines.count("ray stopped") == 2
    assert not any("requeue" in line for line in lines)
    assert not (tmp_path / "runs" / "_slurm" / "42").exists()


def test_the_token_is_for_its_owner_alone(job):
    _, _, _, lines = finish(*job("r.yaml"))
    assert "600" in lines
    assert stat.S_IMODE(SCRIPT.stat().st_mode) & 0o100


def test_one_node_needs_no_workers(job):
    code, _, _, lines = finish(*job("r.yaml", nodes=1))
    assert code == 0
    assert not any(line.startswith("srun") for line in lines)


def test_nodes_that_do_not_come_end_the_job_with_their_names(job):
    code, _, err, lines = finish(*job("r.yaml", await_nodes="never"))
    assert code == 1
    assert "missing: node2" in err
    assert not any(line.startswith("dapo ") for line in lines)
    assert lines.count("ray stopped") == 2


@pytest.mark.parametrize("code", ["1", "2", "3", "130"])
def test_the_drivers_exit_code_is_the_jobs_and_a_failure_is_not_queued_again(job, code):
    found, _, _, lines = finish(*job("r.yaml", driver=code))
    assert found == int(code)
    assert not any("requeue" in line for line in lines)


def test_before_the_time_limit_the_run_is_saved_and_the_job_queued_again(job):
    process, calls = job("r.yaml", driver="wait")
    deadline = time.monotonic() + 30
    while not (calls.exists() and "dapo [" in calls.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)  # the stand-in sets its trap after its first line
    process.send_signal(signal.SIGUSR1)
    code, out, _, lines = finish(process, calls)
    assert code == 130
    assert "saves a checkpoint" in out
    assert lines.index("dapo saves") < lines.index("scontrol requeue 42")
    assert lines.count("ray stopped") == 2


def test_without_a_recipe_it_says_how_it_is_used(job):
    code, _, err, _ = finish(*job())
    assert code == 2
    assert "sbatch [options] cluster/dapo.sbatch RECIPE" in err

"""The Slurm script: what starts where and when, how it waits, how it ends, and when the job is queued again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM, SIGUSR1

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "cluster" / "dapo.sbatch"


def test_versions_then_ray_everywhere_then_all_nodes_have_joined_then_the_driver_once_on_the_head(make_job):
    ended = make_job().run("recipes/a b.yaml", "--set", "eval.benchmark=x y")
    assert ended.code == 0, ended.output
    start = "--block --num-cpus=96 --disable-usage-stats"
    assert (
        f"node1 ray start {start} --head --node-ip-address=192.0.2.1 --port=6379 --include-dashboard=false"
        in ended.calls
    )
    for worker in ("node2", "node3"):
        assert f"{worker} ray start {start} --address=192.0.2.1:6379" in ended.calls
    drivers = [call for call in ended.calls if " dapo [" in call]
    assert drivers == [
        "node1 dapo [train][recipes/a b.yaml][--set][eval.benchmark=x y][--resume] RAY_ADDRESS=192.0.2.1:6379"
    ]
    order = ["node1 srun", "node1 ray start", "node1 ray.init 192.0.2.1:6379", "node2 ray start", "node1 dapo [train]"]
    assert [ended.first(call) for call in order] == sorted(ended.first(call) for call in order)
    assert "all 3 nodes have joined" in ended.output
    assert ended.on("ray stopped") == {"node1", "node2", "node3"}
    assert not ended.requeued


def test_steps_on_other_nodes_share_them_with_all_cores_and_the_environment(make_job):
    ended = make_job().run("r.yaml")
    steps = [call for call in ended.calls if " srun " in call]
    shared = "--overlap --export=ALL --cpus-per-task=96 --cpu-bind=none"
    assert steps[0].startswith(f"node1 srun --nodes=3 --ntasks=3 --nodelist=node1,node2,node3 {shared} bash -c")
    assert steps[1].startswith(f"node1 srun --nodes=2 --ntasks=2 --nodelist=node2,node3 {shared} ray start")
    assert len(steps) == 2


def test_one_node_needs_no_other(make_job):
    ended = make_job(nodes=1).run("r.yaml")
    assert ended.code == 0, ended.output
    assert ended.on("ray start") == ended.on("ray stopped") == {"node1"}
    assert ended.on("dapo [train]") == {"node1"}
    assert sum(" srun " in call for call in ended.calls) == 1  # the versions


def test_the_token_is_one_for_all_nodes_its_owners_alone_new_each_time_and_gone_at_the_end(make_job, tmp_path):
    job = make_job()
    tokens = []
    for _ in range(2):
        ended = job.run("r.yaml")
        seen = [call.split(" ", 1)[1] for call in ended.calls if call.split()[1] == "token"]
        assert len(seen) == 3
        assert len(set(seen)) == 1
        _, mode, kind, token = seen[0].split()
        assert (mode, kind, len(token)) == ("600", "token", 64)
        tokens.append(token)
        assert sorted(file.name for file in (tmp_path / "runs/_slurm/42").iterdir()) == [
            "head.log",
            "versions",
            "workers.log",
        ]
    assert tokens[0] != tokens[1]


def test_nodes_that_do_not_join_in_time_end_the_job_with_their_names(make_job):
    ended = make_job(absent="node2 node3").run("r.yaml", DAPO_WAIT_SECONDS="1")
    assert ended.code == 1
    assert "2 of 3 nodes have not joined the Ray cluster at 192.0.2.1:6379: node2, node3" in ended.output
    assert ended.on("dapo [train]") == set()
    assert ended.on("ray stopped") == {"node1", "node2", "node3"}
    assert not ended.requeued


@pytest.mark.parametrize(("broken", "left"), [("node1", set()), ("node2", {"node1"})])
def test_ray_that_ends_while_nodes_are_awaited_is_not_waited_for(make_job, broken, left):
    ended = make_job(nodes=2, broken=broken).run("r.yaml", DAPO_WAIT_SECONDS="3000")
    assert ended.code == 1
    assert "cannot bind the port" in ended.output
    assert ended.on("dapo [train]") == set()
    assert ended.on("ray stopped") == left


@pytest.mark.parametrize("code", [1, 2, 3, 130, 143])
def test_the_drivers_exit_code_is_the_jobs_and_without_a_signal_it_is_not_queued_again(make_job, code):
    ended = make_job(nodes=2, code=str(code)).run("r.yaml")
    assert ended.code == code
    assert ended.on("ray stopped") == {"node1", "node2"}
    assert not ended.requeued


@pytest.mark.parametrize("times", [1, 3])
def test_near_the_time_limit_the_driver_saves_ray_stops_and_the_job_is_queued_again(make_job, times):
    job = make_job(code="wait")
    job.start("r.yaml")
    job.wait_for("node1 dapo [train]")
    for _ in range(times):
        job.signal(SIGUSR1)
    ended = job.end()
    assert ended.code == 130
    assert ended.requeued
    order = [ended.first(f"node1 {call}") for call in ("dapo saves", "ray stopped", "scontrol requeue 42")]
    assert order == sorted(order)
    assert ended.on("ray stopped") == {"node1", "node2", "node3"}


def test_the_job_queued_again_runs_the_same_command(make_job):
    job = make_job(code="wait")
    job.start("r.yaml", "--run-dir", "runs/x")
    job.wait_for("node1 dapo [train]")
    job.signal(SIGUSR1)
    first = job.end()
    assert first.requeued
    job.environment["STAND_IN_CODE"] = "0"
    second = job.run("r.yaml", "--run-dir", "runs/x")
    assert second.code == 0
    assert second.calls[second.first("node1 dapo [")] == first.calls[first.first("node1 dapo [")]


def test_a_run_that_is_finished_when_the_signal_comes_is_not_queued_again(make_job):
    job = make_job(code="wait", stopped_code="0")
    job.start("r.yaml")
    job.wait_for("node1 dapo [train]")
    job.signal(SIGUSR1)
    ended = job.end()
    assert (ended.code, ended.requeued) == (0, False)


@pytest.mark.parametrize("signals", [[SIGTERM], [SIGUSR1, SIGTERM], [SIGTERM, SIGUSR1]])
def test_a_job_that_somebody_ends_saves_and_stays_ended(make_job, signals):
    job = make_job(code="wait")
    job.start("r.yaml")
    job.wait_for("node1 dapo [train]")
    for number in signals:
        job.signal(number)
    ended = job.end()
    assert ended.code == 130
    assert "node1 dapo saves" in ended.calls
    assert ended.on("ray stopped") == {"node1", "node2", "node3"}
    assert not ended.requeued


@pytest.mark.parametrize("number", [SIGUSR1, SIGTERM])
def test_a_signal_before_training_ends_the_job_for_good(make_job, number):
    job = make_job(nodes=2, absent="node2")
    job.start("r.yaml", DAPO_WAIT_SECONDS="3000")
    job.wait_for("node2 token")
    job.signal(number)
    ended = job.end()
    assert ended.code == 130
    assert "before training began" in ended.output
    assert ended.on("dapo [train]") == set()
    assert ended.on("ray stopped") == {"node1", "node2"}
    assert not ended.requeued


def test_another_version_on_some_node_is_refused_by_name_before_ray_starts(make_job):
    ended = make_job(other="node3").run("r.yaml")
    assert ended.code == 2
    assert "dapo 9.9.9 on node1\ndapo 9.9.9 on node2" in ended.output
    assert "dapo 0.0.1 on node3" in ended.output
    assert ended.on("ray start") == set()


def test_nodes_without_dapo_are_refused(make_job, tmp_path):
    job = make_job()
    (tmp_path / "bin" / "dapo").write_text("#!/usr/bin/env bash\necho no module named dapo_cli\nexit 1\n")
    ended = job.run("r.yaml")
    assert ended.code == 2
    assert "no module named dapo_cli on node2" in ended.output


def test_a_hub_model_is_downloaded_once_before_ray_starts_where_it_is_asked_for(make_job):
    job = make_job()
    assert job.run("r.yaml").on("hf") == set()
    ended = job.run("r.yaml", DAPO_DOWNLOAD="org/a model")
    assert [call for call in ended.calls if " hf " in call] == ["node1 hf download org/a model"]
    assert ended.first("node1 hf") < ended.first("node1 ray start")


def test_the_environment_is_activated_and_the_settings_at_the_top_are_read(make_job, tmp_path):
    (tmp_path / "activate").write_text("export SLURM_CPUS_ON_NODE=1\necho activated\n")
    ended = make_job().run(
        "r.yaml",
        DAPO_ACTIVATE="./activate",
        DAPO_HEAD_IP="198.51.100.7",
        DAPO_RAY_PORT="7001",
        DAPO_CPUS="12",
        DAPO_STATE=str(tmp_path / "some where"),
    )
    assert ended.code == 0, ended.output
    assert "activated" in ended.output
    assert "node2 ray start --block --num-cpus=12 --disable-usage-stats --address=198.51.100.7:7001" in ended.calls
    assert (tmp_path / "some where" / "42" / "head.log").is_file()


def test_without_a_recipe_it_says_how_it_is_used(make_job):
    ended = make_job().run()
    assert ended.code == 2
    assert "sbatch [options] cluster/dapo.sbatch RECIPE" in ended.output
    assert ended.calls == []


def test_slurm_is_told_to_signal_the_script_alone_and_to_allow_requeuing():
    told = {line.split(" ", 1)[1] for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {"--requeue", "--open-mode=append", "--exclusive", "--ntasks-per-node=1"} <= told
    assert any(option.startswith("--signal=B:USR1@") for option in told)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_same_command_starts_a_run_of_the_real_dapo_and_continues_it_when_queued_again(make_job, tmp_path):
    job = make_job()
    real = f'PYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -c "from dapo_cli.cli import main; main()" "$@"\n'
    (tmp_path / "bin" / "dapo").write_text(f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1\n{real}")
    environment = job.environment | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([tmp_path / "bin" / "dapo", "prepare-data", "demo"], cwd=tmp_path, env=environment, check=True)
    small = {
        "train.steps": 4,
        "train.prompts_per_step": 4,
        "train.prompts_per_minibatch": 4,
        "preflight.problems": 0,
        "eval.before_training": "false",
        "eval.after_training": "false",
    }
    command = ["demo", *(word for key, value in small.items() for word in ("--set", f"{key}={value}"))]
    metrics = tmp_path / "runs" / "demo" / "metrics.jsonl"

    job.start(*command)
    job.wait_until(lambda: metrics.exists() and '"step": 1,' in metrics.read_text())
    job.signal(SIGUSR1)
    first = job.end()
    assert (first.code, first.requeued) == (130, True), first.output
    assert "stopped by SIGTERM" in first.output

    second = job.run(*command)
    assert (second.code, second.requeued) == (0, False), second.output
    assert "resuming at step" in second.output
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(5))

"""The Slurm script without Slurm: stand-ins for srun, scontrol, ray, dapo and hf that record what they are asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "cluster" / "dapo.sbatch"
# Whatever should happen does so long before; nothing is measured.
PATIENCE_SECONDS = 300.0

# `record` writes one line: the node, then the words. Settings of a test come in as STAND_IN_*.
HEAD = r"""#!/usr/bin/env bash
record() { echo "${SLURMD_NODENAME} $*" >>"$STAND_IN_CALLS"; }
"""
STAND_INS = {
    "scontrol": r"""
record scontrol "$@"
if [ "$1" = show ]; then for name in $STAND_IN_NODES; do echo "$name"; done; fi
""",
    # Runs its command on each node of --nodelist at once, in a process that knows the node's name.
    "srun": r"""
record srun "$@"
while [ "${1#--}" != "$1" ]; do
  case "$1" in --nodelist=*) list="${1#*=}" ;; esac
  shift
done
children=()
trap 'kill -TERM "${children[@]}"' TERM
for name in ${list//,/ }; do
  SLURMD_NODENAME="$name" "$@" &
  children+=("$!")
done
for child in "${children[@]}"; do wait "$child" || wait "$child"; done
""",
    "ray": r"""
record ray "$@"
if [ "$SLURMD_NODENAME" = "$STAND_IN_BROKEN" ]; then sleep 0.3; echo "cannot bind the port"; exit 1; fi
trap 'record ray stopped; exit 1' TERM
record token "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" "$RAY_AUTH_MODE" "$(cat "$RAY_AUTH_TOKEN_PATH")"
case " $STAND_IN_ABSENT " in *" $SLURMD_NODENAME "*) ;; *) touch "$STAND_IN_JOINED/$SLURMD_NODENAME" ;; esac
while true; do sleep 0.02; done
""",
    "dapo": r"""
if [ "$1" = --version ]; then
  [ "$SLURMD_NODENAME" = "$STAND_IN_OTHER" ] && echo "dapo 0.0.1" || echo "dapo 9.9.9"
  exit
fi
trap 'record dapo saves; sleep 0.2; exit "$STAND_IN_STOPPED_CODE"' TERM
record dapo "$(printf '[%s]' "$@")" "RAY_ADDRESS=$RAY_ADDRESS"
if [ "$STAND_IN_CODE" = wait ]; then while true; do sleep 0.02; done; fi
exit "$STAND_IN_CODE"
""",
    "hf": """
record hf "$@"
""",
}
# Read by the real `python -m dapo_cli.backend.await_nodes`, in place of the package ray.
RAY_MODULE = """
import os
from types import SimpleNamespace

util = SimpleNamespace(get_node_ip_address=lambda: "192.0.2.1")


def is_initialized():
    return False


def init(address, **_):
    with open(os.environ["STAND_IN_CALLS"], "a") as calls:
        calls.write(f"{os.environ['SLURMD_NODENAME']} ray.init {address}\\n")


def nodes():
    joined = os.listdir(os.environ["STAND_IN_JOINED"])
    return [{"NodeManagerHostname": f"{name}.cluster", "Alive": True} for name in joined]
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended."""

    code: int
    output: str
    """Standard output and standard error together."""
    calls: list[str]

    def first(self, beginning: str) -> int:
        """Position of the first call that begins so."""
        return next(position for position, call in enumerate(self.calls) if call.startswith(beginning))

    def on(self, words: str) -> set[str]:
        """Nodes on which this was called."""
        return {call.split()[0] for call in self.calls if call.partition(" ")[2].startswith(words)}

    @property
    def requeued(self) -> bool:
        """Whether the job was queued again."""
        return "node1 scontrol requeue 42" in self.calls


class SlurmJob:
    """One job id on stand-in nodes; `run` or `start` may be called again, as after a requeue."""

    def __init__(self, folder: Path, nodes: int = 3, **stand_ins: str) -> None:
        """`stand_ins` are settings of the stand-ins above: `code="wait"` is STAND_IN_CODE."""
        self.folder = folder
        self.calls = folder / "calls"
        self.process: subprocess.Popen[str] | None = None
        commands, modules, joined = (folder / name for name in ("bin", "modules", "joined"))
        for place in (commands, modules, joined):
            place.mkdir()
        for name, body in STAND_INS.items():
            (commands / name).write_text(HEAD + body)
            (commands / name).chmod(0o755)
        (commands / "python").write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" "$@"\n')
        (commands / "python").chmod(0o755)
        (modules / "ray.py").write_text(RAY_MODULE)
        settings = {"code": "0", "stopped_code": "130", "broken": "", "absent": "", "other": ""} | stand_ins
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DAPO_", "RAY_", "SLURM"))},
            **{f"STAND_IN_{name.upper()}": value for name, value in settings.items()},
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": f"{modules}:{REPOSITORY}",
            "STAND_IN_CALLS": str(self.calls),
            "STAND_IN_JOINED": str(joined),
            "STAND_IN_NODES": " ".join(f"node{number}" for number in range(1, nodes + 1)),
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
            "SLURM_CPUS_ON_NODE": "96",
            "SLURMD_NODENAME": "node1",
        }

    def start(self, *arguments: str, **environment: str) -> None:
        """Start the script as Slurm would, in the folder of the job."""
        self.calls.write_text("")
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, beginning: str) -> None:
        """Until a call that begins so is recorded."""
        self.wait_until(lambda: any(call.startswith(beginning) for call in self.calls.read_text().splitlines()))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until it holds, while the script runs."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.calls.read_text()
            assert self.process.poll() is None, self.end()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Signal the script alone, as `--signal=B:` and `scancel --batch` do."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the script's end."""
        assert self.process is not None
        output, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return Ended(self.process.returncode, output, self.calls.read_text().splitlines())

    def run(self, *arguments: str, **environment: str) -> Ended:
        """Start the script and wait for its end."""
        self.start(*arguments, **environment)
        return self.end()

    def kill(self) -> None:
        """End what a failed test has left, the stand-ins on other nodes too."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., SlurmJob]]:
    """A job on stand-in nodes; none of its processes outlives the test."""
    made: list[SlurmJob] = []

    def make(nodes: int = 3, **stand_ins: str) -> SlurmJob:
        made.append(SlurmJob(tmp_path, nodes, **stand_ins))
        return made[-1]

    yield make
    for job in made:
        job.kill()

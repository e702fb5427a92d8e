"""Who may import whom. A file imports from its own layer or one below it, wherever in the file the import stands."""

from __future__ import annotations

import pytest
from source_tree import Import, imports_of, module_name, modules, source_files

# Lowest first; the longest prefix that fits a module decides its layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "dapo_cli",
        "dapo_cli.errors",
        "dapo_cli.types",
        "dapo_cli.resources",
        "dapo_cli.hub",
        "dapo_cli.hub_failure",
        "dapo_cli.recipe",
    ),
    ("dapo_cli.algorithm", "dapo_cli.reward", "dapo_cli.evaluation.statistics"),
    ("dapo_cli.dataset", "dapo_cli.toy", "dapo_cli.rollout", "dapo_cli.policy"),
    ("dapo_cli.backend",),
    (
        "dapo_cli.rollout.collect",
        "dapo_cli.workload",
        "dapo_cli.preparation",
        "dapo_cli.trainer",
        "dapo_cli.evaluation",
        "dapo_cli.inference",
        "dapo_cli.mechanisms",
        "dapo_cli.report",
        "dapo_cli.serving",
        "dapo_cli.export",
        "dapo_cli.run",
    ),
    ("dapo_cli.launch",),
    (
        "dapo_cli.cli",
        "dapo_cli.cli_eval",
        "dapo_cli.cli_mechanisms",
        "dapo_cli.cli_models",
        "dapo_cli.cli_report",
        "dapo_cli.cli_shared",
    ),
)
TORCH_FREE = (
    "dapo_cli.errors",
    "dapo_cli.types",
    "dapo_cli.resources",
    "dapo_cli.hub",
    "dapo_cli.hub_failure",
    "dapo_cli.recipe",
)
PURE = ("dapo_cli.algorithm", "dapo_cli.reward", "dapo_cli.evaluation.statistics")
KNOWN_TO = {
    "ray": ("dapo_cli.backend.", "dapo_cli.serving."),
    "vllm": ("dapo_cli.rollout.vllm_", "dapo_cli.backend.", "dapo_cli.serving."),
    "peft": ("dapo_cli.policy.lora", "dapo_cli.export."),
    "datasets": (),
}
"""Libraries that the core install leaves out, and who may import them: never while a module is imported."""


def layer(module: str) -> int:
    """Index into LAYERS of the longest fitting prefix; a top-level module that no layer names is an error."""
    fits = [(len(prefix), index) for index, row in enumerate(LAYERS) for prefix in row if within(module, prefix)]
    length, index = max(fits)
    assert length > len("dapo_cli") or module == "dapo_cli", f"{module} has no layer: add it to LAYERS"
    return index


def within(module: str, prefix: str) -> bool:
    """Whether the module is `prefix` or inside it."""
    return module == prefix or module.startswith(prefix + ".")


def all_imports() -> list[Import]:
    """Imports of every file of the package."""
    return [found for path in source_files() for found in imports_of(path)]


def importers(library: str) -> set[str]:
    """Modules that import this library."""
    return {found.importer for found in all_imports() if within(found.module, library)}


def test_imports_go_down_the_layers() -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.module}, which is above it"
        for found in all_imports()
        if within(found.module, "dapo_cli") and layer(found.module) > layer(found.importer)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_direction_would_be_seen() -> None:
    assert layer("dapo_cli.evaluation.statistics") < layer("dapo_cli.policy.batch") < layer("dapo_cli.evaluation.other")
    assert layer("dapo_cli.rollout.hf_engine") < layer("dapo_cli.backend.local") < layer("dapo_cli.rollout.collect")
    with pytest.raises(AssertionError, match="no layer"):
        layer("dapo_cli.elsewhere")


@pytest.mark.parametrize("library", KNOWN_TO)
def test_the_core_needs_no_cluster_library(library: str) -> None:
    assert {name for name in importers(library) if not name.startswith(KNOWN_TO[library] or ("-",))} == set()
    early = {found.importer for found in all_imports() if within(found.module, library) and found.at_import_time}
    assert early <= LOADED_INSIDE_VLLM


LOADED_INSIDE_VLLM = {"dapo_cli.backend.message_transfer"}
"""What vLLM's own processes import; nothing of ours does while it is imported."""


def test_what_vllm_loads_is_not_imported_by_the_core() -> None:
    early = {found.importer for found in all_imports() if found.module in LOADED_INSIDE_VLLM and found.at_import_time}
    assert early == set()


def test_wandb_is_known_to_one_file() -> None:
    assert importers("wandb") <= {"dapo_cli.run.tracking"}


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_recipe_types_and_errors_are_free_of_torch(library: str) -> None:
    assert not {name for name in importers(library) if name.startswith(TORCH_FREE)}


@pytest.mark.parametrize("library", ["ray", "vllm", "transformers", "pyarrow", "wandb"])
def test_mathematics_and_rewards_need_torch_at_most(library: str) -> None:
    assert not {name for name in importers(library) if name.startswith(PURE)}


def test_no_module_imports_itself_in_a_circle() -> None:
    edges: dict[str, set[str]] = {module_name(path): set() for path in source_files()}
    for found in all_imports():
        if found.at_import_time and found.module in modules() and found.module != found.importer:
            edges[found.importer].add(found.module)
    # Remove what imports nothing that is left, until nothing changes; what stays is in or above a circle.
    while done := {name for name, targets in edges.items() if not targets & edges.keys()}:
        edges = {name: targets for name, targets in edges.items() if name not in done}
    assert not edges, f"circular imports among {sorted(edges)}"

import pytest

from dapo_cli.errors import UsageError
from dapo_cli.evaluation import engines
from dapo_cli.evaluation.engines import choose_engine, choose_tensor_parallel
from dapo_cli.recipe.loading import load_recipe

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "gpus", "heads", "size"),
    [
        (3 * GB, [24 * GB], 12, 1),
        (66 * GB, [80 * GB] * 8, 40, 2),  # 33 GB each of 56
        (66 * GB, [40 * GB] * 8, 40, 4),  # 16.5 GB each of 28
        (15 * GB, [16 * GB] * 4, 28, 2),
        (60 * GB, [24 * GB] * 8, 12, 4),  # 15 GB each of 16.8
        (10**12, [], 40, 1),  # a CPU has what it has
    ],
)
def test_as_few_gpus_as_hold_the_weights(weights, gpus, heads, size):
    assert choose_tensor_parallel(weights, gpus, heads) == size


@pytest.mark.parametrize(("gpus", "heads"), [([24 * GB] * 2, 40), ([80 * GB], 40), ([40 * GB] * 8, 9)])
def test_weights_that_fit_nowhere_are_refused(gpus, heads):
    with pytest.raises(UsageError, match=r"weights of 66 GB do not fit"):
        choose_tensor_parallel(66 * GB, gpus, heads)


def test_the_engine_is_the_recipes_unless_vllm_is_missing_or_another_is_named(monkeypatch):
    recipe = load_recipe("dapo_qwen32b", []).recipe
    notes = []
    monkeypatch.setattr("dapo_cli.rollout.vllm_environment.installed_vllm", lambda: None)
    assert choose_engine(recipe, notes.append) == "hf"
    assert "vLLM is not installed" in notes[0]
    monkeypatch.setattr("dapo_cli.rollout.vllm_environment.installed_vllm", lambda: ("cuda", "0.32.0"))
    assert choose_engine(recipe, notes.append) == "vllm"
    named = load_recipe("dapo_qwen32b", ["eval.engine=hf"]).recipe
    assert engines.choose_engine(named, notes.append) == "hf"
    assert len(notes) == 1

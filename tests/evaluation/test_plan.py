from dataclasses import replace

import pytest
from transformers import LlamaConfig

from dapo_cli.errors import UsageError
from dapo_cli.evaluation import plan as planning
from dapo_cli.evaluation.benchmark_problems import BenchmarkProblems
from dapo_cli.evaluation.plan import plan_evaluation, with_card_values
from dapo_cli.recipe.loading import load_recipe
from dapo_cli.toy.tokenizer import build_tokenizer
from dapo_cli.types import Problem

PROBLEMS = tuple(Problem(f"p{n}", f"What is {n} + 1?", (), str(n + 1), "aime_2024") for n in range(10, 13))


class Stops:
    eos_token_id = 2


def planned(monkeypatch, *overrides, positions=30000):
    def found(benchmark, files, template):
        with_messages = tuple(
            replace(p, messages=({"role": "user", "content": template.replace("{problem}", p.text)},)) for p in PROBLEMS
        )
        return BenchmarkProblems(with_messages, 96, "a file", 1)

    monkeypatch.setattr(planning, "load_problems", found)
    loaded = with_card_values(load_recipe("demo", ["eval.benchmark=aime_2024", *overrides]))
    notes = []
    config = LlamaConfig(max_position_embeddings=positions)
    return plan_evaluation(loaded, None, build_tokenizer(), (config, Stops()), notes.append), notes


def test_a_card_brings_its_samples_its_limit_its_prompt_and_its_scorer(monkeypatch):
    plan, notes = planned(monkeypatch, "eval.samples=null", "prompt.template='{problem} ='", "reward.scorer=boxed")
    assert (plan.samples, plan.sampling.max_response_tokens) == (32, 20480)
    assert (plan.sampling.temperature, plan.sampling.top_p, plan.sampling.stop_token_ids) == (1.0, 0.7, (2,))
    assert plan.reward.scorer == "dapo"
    assert plan.prompts[0].problem.messages[0]["content"].startswith("Solve the following math problem")
    assert notes == [
        "aime_2024: 3 problems from 96 rows of a file",
        "aime_2024: 1 answers written as plain integers (034, 34.0 -> 34)",
    ]


def test_the_recipe_may_ask_less_and_that_is_said(monkeypatch):
    plan, notes = planned(
        monkeypatch, "eval.samples=2", "eval.max_response_tokens=64", "eval.problems=2", positions=256
    )
    assert (plan.samples, plan.sampling.max_response_tokens, len(plan.prompts)) == (2, 64, 2)
    assert notes[-1] == "aime_2024: responses of at most 64 tokens; published scores allow 20480"
    assert plan.settings("m").sampling.max_response_tokens == 64


def test_what_does_not_fit_the_model_is_refused_with_the_number_that_does(monkeypatch):
    with pytest.raises(UsageError, match=r"do not fit the 256 positions") as error:
        planned(monkeypatch, positions=256)
    longest = max(len(prompt.prompt_ids) for prompt in planned(monkeypatch, "eval.max_response_tokens=1")[0].prompts)
    assert f"at most {256 - longest};" in str(error.value.hint)


def test_the_recipes_own_values_fill_what_its_benchmark_leaves_open():
    evaluation = with_card_values(load_recipe("demo", ["eval.samples=null"])).recipe.eval
    assert (evaluation.samples, evaluation.max_response_tokens) == (4, 32)

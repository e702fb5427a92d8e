import json
from dataclasses import replace

import pytest
from fake_endpoint import FakeEndpoint, listening

from dapo_cli.errors import UsageError
from dapo_cli.evaluation.endpoint import Endpoint
from dapo_cli.evaluation.endpoint_command import evaluate_endpoint
from dapo_cli.evaluation.samples import read_samples
from dapo_cli.recipe.loading import load_recipe

CARD = """\
name: mini
description: Two sums.
problems: {problems: 2, columns: {problem_column: question, answer_column: answer}}
sampling: {temperature: 1.0, top_p: 0.7, top_k: 0, min_p: 0.0, max_response_tokens: null}
samples: 2
"""
ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 0?", "answer": "1"}]


@pytest.fixture
def loaded(tmp_path):
    (tmp_path / "mini.yaml").write_text(CARD)
    (tmp_path / "mini.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def load(*overrides, **prompt):
        own = [f"eval.benchmark={tmp_path}/mini.yaml", f"eval.files={{mini: {tmp_path}/mini.jsonl}}", "eval.samples=2"]
        recipe = load_recipe("demo", [*own, "eval.max_response_tokens=8", "prompt.template=problem", *overrides])
        changed = recipe.recipe.prompt.model_copy(update=prompt)
        return replace(recipe, recipe=recipe.recipe.model_copy(update={"prompt": changed}))

    return load


def evaluate(loaded, out, fake, notes=None):
    with listening(fake) as url:
        asked = Endpoint(url, note=print)
        return evaluate_endpoint(loaded, asked, out, (notes if notes is not None else []).append, lambda *done: None)


def test_the_recipes_prompt_is_sent_as_a_conversation(loaded, tmp_path):
    fake, notes = FakeEndpoint(), []
    chat = loaded(
        "prompt.format=chat", "prompt.system=Be brief.", "prompt.few_shot=[{problem: '2 + 2?', answer: 'Answer: 4'}]"
    )
    result, folder = evaluate(chat, tmp_path / "out", fake, notes)
    assert folder == tmp_path / "out"
    assert {path for path, _, _ in fake.posts} == {"/v1/chat/completions"}
    assert sorted(body["messages"][-1]["content"] for _, body, _ in fake.posts) == ["1 + 0?"] * 2 + ["1 + 1?"] * 2
    assert fake.posts[0][1]["messages"][:-1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "Answer: 4"},
    ]
    assert fake.posts[0][1]["max_tokens"] == 8
    assert result.settings.model.startswith("served@http://127.0.0.1:")
    samples = read_samples(folder / "samples.jsonl")
    assert [each.outcome == "right" for each in samples] == [
        str(each.seed % 2**63 % 3) == each.ground_truth for each in samples
    ]
    assert any(line.startswith("sent: max_tokens 8, temperature 1.0, top_p 0.7") for line in notes)


def test_a_plain_prompt_is_sent_as_text(loaded, tmp_path):
    fake = FakeEndpoint()
    evaluate(loaded("prompt.format=plain"), tmp_path / "out", fake)
    assert {path for path, _, _ in fake.posts} == {"/v1/completions"}
    assert {body["prompt"] for _, body, _ in fake.posts} == {"1 + 1?", "1 + 0?"}
    assert "messages" not in fake.posts[0][1]


def test_prompts_longer_in_bytes_than_the_token_limit_are_asked(loaded, tmp_path):
    fake = FakeEndpoint()
    evaluate(loaded("prompt.format=chat", "prompt.max_prompt_tokens=1"), tmp_path / "out", fake)
    assert len(fake.posts) == 4


def test_arguments_of_the_chat_template_go_to_vllm_only(loaded, tmp_path):
    fake = FakeEndpoint()
    wanted = loaded("prompt.format=chat", template_arguments={"enable_thinking": False})
    evaluate(wanted, tmp_path / "vllm", fake)
    assert fake.posts[0][1]["chat_template_kwargs"] == {"enable_thinking": False}
    fake.cards = {"data": [{"id": "served", "owned_by": "somebody"}]}
    with pytest.raises(UsageError, match=r"prompt.template_arguments: only vLLM"):
        evaluate(wanted, tmp_path / "other", fake)


def test_what_cannot_be_asked_of_a_server_is_refused_before_anything_is(loaded, tmp_path):
    fake = FakeEndpoint()
    with pytest.raises(UsageError, match=r"prompt.chat_template: an endpoint applies"):
        evaluate(loaded("prompt.format=chat", chat_template="mine.jinja"), tmp_path / "out", fake)
    fake.cards["data"][0]["max_model_len"] = 8
    with pytest.raises(UsageError, match="a response of 8 tokens does not fit the 8"):
        evaluate(loaded("prompt.format=chat"), tmp_path / "out", fake)
    assert fake.posts == []


def test_another_conversation_is_another_evaluation(loaded, tmp_path):
    fake = FakeEndpoint()
    with listening(fake) as url:

        def ask(system):
            wanted = loaded("prompt.format=chat", f"prompt.system={system}")
            return evaluate_endpoint(wanted, Endpoint(url), tmp_path / "out", print, lambda *done: None)[0]

        assert ask("a").problems == ask("a").problems
        with pytest.raises(UsageError, match="prompts_hash"):
            ask("b")
    assert len(fake.posts) == 4

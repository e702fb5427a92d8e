"""Prompts: what each format renders, that nothing is cut, and where a response ends."""

from types import SimpleNamespace

import pytest
from tiny import tiny_recipe

from dapo_cli.errors import UsageError
from dapo_cli.rollout.prompts import PromptRenderer, describe_prompt, stop_token_ids, training_sampling
from dapo_cli.types import Problem

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ suffix }}"
)


class CharacterTokenizer:
    """One token per character, a begin token 0 unless told otherwise, and a chat template."""

    chat_template = CHAT

    def __call__(self, text, add_special_tokens=True):
        ids = [ord(character) for character in text]
        return SimpleNamespace(input_ids=[0, *ids] if add_special_tokens else ids)

    def apply_chat_template(self, messages, chat_template, tokenize, add_generation_prompt, **arguments):
        import jinja2

        template = jinja2.Template(chat_template or self.chat_template)
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **arguments)

    def convert_ids_to_tokens(self, ids):
        return [chr(i) for i in ids]


def problem(text="3 + 4?", template="{problem}"):
    content = template.replace("{problem}", text)
    return Problem("id", text, ({"role": "user", "content": content},), "7", "test")


def rendered(tokenizer=None, row=None, **prompt):
    settings = tiny_recipe(prompt={"max_prompt_tokens": 200} | prompt).prompt
    return PromptRenderer(tokenizer or CharacterTokenizer(), settings).render(row or problem())


def test_chat_uses_the_tokenizers_template_with_system_prompt_and_arguments():
    prompt = rendered(system="Be brief.", template_arguments={"suffix": "<think>"})
    assert prompt.text == "<system>Be brief.<user>3 + 4?<assistant><think>"
    assert prompt.prompt_ids[0] == ord("<")  # the template writes special tokens itself


def test_few_shot_examples_are_turns_in_a_chat():
    prompt = rendered(
        row=problem(template="Q: {problem}"),
        template="Q: {problem}",
        few_shot=[{"problem": "1 + 1?", "answer": "Answer: 2"}],
    )
    assert prompt.text == "<user>Q: 1 + 1?<assistant>Answer: 2<user>Q: 3 + 4?<assistant>"


def test_plain_few_shot_ends_with_the_real_problem_and_gets_the_tokenizers_special_tokens():
    prompt = rendered(
        row=problem(template="Question: {problem}\nAnswer:"),
        format="plain",
        template="Question: {problem}\nAnswer:",
        few_shot=[{"problem": "1 + 1?", "answer": "2"}],
    )
    assert prompt.text == "Question: 1 + 1?\nAnswer: 2\n\nQuestion: 3 + 4?\nAnswer:"
    assert prompt.prompt_ids[0] == 0


def test_a_jinja_file_replaces_the_tokenizers_template(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("[{{ messages[-1].content }}]")
    assert rendered(chat_template=str(file)).text == "[3 + 4?]"
    with pytest.raises(UsageError, match="no such file"):
        rendered(chat_template=str(tmp_path / "other.jinja"))


def test_chat_without_a_template_is_refused():
    tokenizer = CharacterTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="the tokenizer has no chat template"):
        rendered(tokenizer)


def test_a_long_prompt_is_refused_or_dropped_and_never_cut():
    rows = [problem("short"), problem("long" * 50)]
    renderer = PromptRenderer(CharacterTokenizer(), tiny_recipe(prompt={"max_prompt_tokens": 40}).prompt)
    with pytest.raises(UsageError, match=r"1 of 2 prompts are longer than 40 tokens; the longest has 217"):
        renderer.render_all(rows)
    dropping = tiny_recipe(prompt={"max_prompt_tokens": 40, "long_prompts": "drop"}).prompt
    prompts, dropped = PromptRenderer(CharacterTokenizer(), dropping).render_all(rows)
    assert ([prompt.problem.text for prompt in prompts], dropped) == (["short"], 1)
    with pytest.raises(UsageError, match="no prompt fits into 40 tokens"):
        PromptRenderer(CharacterTokenizer(), dropping).render_all(rows[1:])


def test_stop_ids_are_the_recipes_or_those_of_the_generation_config():
    rollout = tiny_recipe().rollout
    assert stop_token_ids(rollout, SimpleNamespace(eos_token_id=[2, 5])) == (2, 5)
    assert stop_token_ids(rollout, SimpleNamespace(eos_token_id=2)) == (2,)
    stated = tiny_recipe(rollout={"stop_token_ids": [9]}).rollout
    assert stop_token_ids(stated, SimpleNamespace(eos_token_id=2)) == (9,)
    with pytest.raises(UsageError, match="names no eos_token_id"):
        stop_token_ids(rollout, SimpleNamespace(eos_token_id=None))


def test_the_first_prompt_is_described_with_its_end_and_what_ends_a_response():
    rollout = tiny_recipe(rollout={"stop_strings": ["\n"]}).rollout
    shown = describe_prompt(rendered(), CharacterTokenizer(), training_sampling(rollout, (33,)))
    assert shown["text"] == "<user>3 + 4?<assistant>"
    assert "".join(shown["last_tokens"]) == "sistant>"
    assert shown["stop_tokens"] == ["!"]
    assert shown["stop_strings"] == ["\n"]


@pytest.mark.parametrize("text", ["{{ messages[", "{{ missing.field }}", "{{ messages + 1 }}"])
def test_a_jinja_file_that_cannot_be_rendered_is_refused(tmp_path, text):
    file = tmp_path / "mine.jinja"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.jinja: cannot be rendered"):
        rendered(chat_template=str(file))


def test_a_jinja_file_in_another_encoding_or_an_empty_prompt_is_refused(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a UTF-8 text file"):
        rendered(chat_template=str(file))
    file.write_text("")
    with pytest.raises(UsageError, match="the file is empty"):
        rendered(chat_template=str(file))
    file.write_text("{% if false %}x{% endif %}")
    with pytest.raises(UsageError, match="the prompt of problem id is empty"):
        rendered(chat_template=str(file))

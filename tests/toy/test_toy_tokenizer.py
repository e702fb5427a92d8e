from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dapo_cli.dataset.prompt_template import DAPO_TEMPLATE, apply_template
from dapo_cli.toy.tokenizer import build_tokenizer, vocabulary

TOKENIZER = build_tokenizer()
PRINTABLE = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126))


def ids(text: str) -> list[int]:
    encoded: list[int] = TOKENIZER(text, add_special_tokens=False).input_ids
    return encoded


@given(st.lists(PRINTABLE | st.sampled_from(["\n", DAPO_TEMPLATE, "Answer: ", "\\frac{1}{2}", "a" * 300])).map("".join))
def test_every_printable_text_comes_back_exactly(text: str) -> None:
    assert TOKENIZER.decode(ids(text)) == text


@given(st.integers(10, 99), st.integers(10, 99))
def test_a_prompt_is_short_and_comes_back_exactly(first: int, second: int) -> None:
    message = {"role": "user", "content": apply_template("dapo", f"What is {first} + {second}?")}
    text = TOKENIZER.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert text == f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    prompt_ids = ids(text)
    assert len(prompt_ids) == 25
    assert TOKENIZER.decode(prompt_ids) == text
    assert TOKENIZER.unk_token_id not in prompt_ids


def test_digits_stand_alone_and_answers_are_a_few_tokens() -> None:
    assert TOKENIZER.convert_ids_to_tokens(ids("Answer: 185")) == ["Answer", ":", " ", "1", "8", "5"]


def test_ids_of_special_tokens_and_size() -> None:
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.eos_token) == (0, 2, "<|im_end|>")
    assert len(TOKENIZER) == len(vocabulary()) < 120
    assert ids("<|im_end|>") == [2]
    assert TOKENIZER.decode([*ids("Answer: 7"), 2], skip_special_tokens=True) == "Answer: 7"


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(DAPO_TEMPLATE).input_ids == ids(DAPO_TEMPLATE)
    assert loaded.chat_template == TOKENIZER.chat_template
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 2)


@pytest.mark.parametrize("text", ["é", "\t", "加"])
def test_other_characters_are_unknown(text: str) -> None:
    assert TOKENIZER.unk_token_id in ids(text)

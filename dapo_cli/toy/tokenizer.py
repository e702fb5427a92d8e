"""The toy model's tokenizer: the sentences of the DAPO instruction are one token each, other text is characters.

A prompt of the toy task is then about twenty tokens long. Tokens carry their spaces and digits stand alone, so that
decoding is plain concatenation and gives back every text of printable ASCII exactly.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from dapo_cli.dataset.prompt_template import DAPO_TEMPLATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, END, UNKNOWN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>"
SENTENCES = tuple(part for part in re.split(r"\n\n|(?<=\.)(?= )", DAPO_TEMPLATE) if part != "{problem}")
WORDS = ("user", "assistant", "system", "What", " is", " +", "Answer", "Let", " me", " think")
PIECES = "|".join([*map(re.escape, SENTENCES), r" ?[A-Za-z]{1,64}", r"[0-9]", r" ?[^A-Za-z0-9\s]", r"\s"])

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary() -> dict[str, int]:
    """Token to id: special tokens, printable ASCII and the newline, the task's words, the instruction's sentences.

    >>> tokens = vocabulary()
    >>> tokens["<|endoftext|>"], "7" in tokens, "Solve the following math problem step by step." in tokens, len(tokens)
    (0, True, True, 113)
    """
    characters = string.digits + string.ascii_letters + string.punctuation + " \n"
    return {token: index for index, token in enumerate([PAD, START, END, UNKNOWN, *characters, *WORDS, *SENTENCES])}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with a ChatML chat template; `<|im_end|>` ends a response and `<|endoftext|>` pads."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # With an empty continuation prefix WordPiece takes the longest known piece each time: a whole word, or a character.
    longest = max(map(len, SENTENCES))
    model = models.WordPiece(
        vocabulary(), unk_token=UNKNOWN, max_input_chars_per_word=longest, continuing_subword_prefix=""
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )

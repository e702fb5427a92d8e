"""Questions, and an endpoint that is asked them, as the tests of endpoints do."""

import numpy as np
import pytest
from fake_endpoint import listening

from dapo_cli.errors import UsageError
from dapo_cli.evaluation.endpoint import Endpoint
from dapo_cli.evaluation.endpoint_request import RequestTokenizer
from dapo_cli.evaluation.evaluate import Question, sample_seed
from dapo_cli.evaluation.result import EvaluationSettings
from dapo_cli.recipe.schema import Reward
from dapo_cli.types import Problem, Sampling

SAMPLING = Sampling(8, 1.0, 0.7, 0, 0.0, 1.0, 0.0, 0.0, (), ())
SETTINGS = EvaluationSettings("heldout", 4, SAMPLING, 12, "served", "toy_sums", "abc")
REWARD = Reward(overlong_buffer_length=4)


def prompt_ids(text):
    tokenizer = RequestTokenizer()
    messages = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(messages, chat_template=None, tokenize=False, add_generation_prompt=True)
    return np.array(tokenizer(chat, add_special_tokens=False).input_ids, np.int32)


PROBLEMS = [
    (Problem(f"p{i}", f"What is {i} + 1?", (), str(i % 3), "toy_sums"), prompt_ids(f"What is {i} + 1?"))
    for i in range(5)
]


def questions(count=4):
    problem, ids = PROBLEMS[0]
    return [Question(0, n, problem, ids, SAMPLING, sample_seed(12, "p0", n)) for n in range(count)]


def endpoint(url, model=None, notes=None, concurrency=4, wait=5.0, timeout=5.0, **rest):
    made = Endpoint(url, model, None, concurrency, (wait, timeout), (notes if notes is not None else []).append, **rest)
    made.patience.first_delay_seconds = 0.01
    return made


def answers(fake, count=4, **options):
    with listening(fake) as url:
        return list(endpoint(url, **options).respond(questions(count)))


def error_of(fake, kind=UsageError, **options):
    with pytest.raises(kind) as caught:
        answers(fake, **options)
    assert type(caught.value) is kind
    return f"{caught.value.message} | {caught.value.hint}"

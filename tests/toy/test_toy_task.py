import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.dataset.identity import problem_id
from dapo_cli.reward.dapo_rule import extract, score
from dapo_cli.toy import task
from dapo_cli.toy.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def round_trip(text: str) -> str:
    """What a response looks like after going through token ids, as rollouts do."""
    decoded: str = TOKENIZER.decode(TOKENIZER(text).input_ids)
    return decoded


@given(st.integers(10, 99), st.integers(10, 99))
def test_a_worked_answer_is_right_to_the_scorer(first: int, second: int) -> None:
    answer = round_trip(task.worked_answer(f"What is {first} + {second}?"))
    assert score(answer, str(first + second)).outcome == "right"


def test_worked_answers_carry() -> None:
    assert task.worked_answer("What is 99 + 99?") == "9+9=18\n9+9+1=19\nAnswer: 198"
    assert task.worked_answer("What is 20 + 31?") == "0+1=1\n2+3=5\nAnswer: 51"
    # With a slip of +1 the units are 9 + 1 = 10: the carry follows the slip.
    assert task.worked_answer("What is 24 + 35?", slip=1) == "4+5=10\n2+3+1=6\nAnswer: 60"
    assert task.worked_answer("What is 20 + 30?", slip=-1) == "0+0=0\n2+3=5\nAnswer: 50"  # never below 0


@given(st.integers(0, 2**32))
def test_every_careless_answer_is_read_by_the_scorer(seed: int) -> None:
    assert extract(round_trip(task.careless_answer("What is 37 + 48?", random.Random(seed)))) is not None


def test_careless_answers_vary_in_form_length_and_truth() -> None:
    chance = random.Random(0)
    answers = [task.careless_answer("What is 37 + 48?", chance) for _ in range(4000)]
    lengths = [len(TOKENIZER(answer).input_ids) + 1 for answer in answers]
    right = sum(score(answer, "85").outcome == "right" for answer in answers) / 4000
    # Worked out without a slip 0.4 x 0.8, guessed right 0.6 x 0.2: 0.44, standard error 0.008.
    assert 0.41 < right < 0.47
    assert min(lengths) < 8
    over_the_limit = sum(length > 32 for length in lengths) / 4000
    # 20 tokens worked out, so that 3 sentences of 5 are too many: 0.25 x 0.6^2 x 0.4 = 0.036; guesses
    # with 5 sentences need 25 + 6 tokens.
    assert 0.025 < over_the_limit < 0.06
    assert max(lengths) < 64


def test_the_warm_start_never_sees_what_may_be_held_out() -> None:
    seen = task.warm_start_problem_ids()
    assert len(seen) == 8100 - task.RESERVED_PROBLEMS
    measured = {problem_id(row.problem) for row in task.measured_problems()}
    assert len(measured) == 200
    assert seen.isdisjoint(measured)


def test_terms_refuse_other_problems() -> None:
    with pytest.raises(ValueError, match="not a sum of two numbers"):
        task.terms("What is 3 * 4?")

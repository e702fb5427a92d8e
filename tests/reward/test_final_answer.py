import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.reward.final_answer import ANSWER_CHARACTERS, final_answer, last_box


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("Answer: 1\nAnswer: 2", "2"),
        ("Answer: 1 no, Answer: 2", "2"),
        ("**Answer**: 5", "5"),
        ("**Answer:** 5", "** 5"),
        ("Answer:\n\n5\nDone", "5"),
        ("Answer: \\[\n5\n\\]", "5"),
        ("Answer：5", "5"),
        ("答案：5", "5"),
        ("Answer: 1 \\boxed{2}", "2"),
        ("\\boxed{2}\nAnswer: 1", "1"),
        ("\\boxed{a\\}b}", "a\\}b"),
        ("Answer:", None),
        ("Answer 5", None),
        ("", None),
    ],
)
def test_what_and_where(response, text):
    found = final_answer(response)
    assert (found and found.text) == text
    if found:
        assert response[found.start : found.end] == found.text


def test_only_the_end_counts_and_positions_are_those_of_the_whole_response():
    long = "x" * 10_000 + "\nAnswer: 5"
    found = final_answer(long)
    assert long[found.start : found.end] == "5"
    assert final_answer("Answer: 5\n" + "x" * ANSWER_CHARACTERS) is None


@given(st.text(alphabet="\\boxed{}fA answer:5\n$", max_size=60))
def test_never_raises_and_lies_in_the_response(response):
    for found in (final_answer(response), last_box(response)):
        assert found is None or response[found.start : found.end] == found.text

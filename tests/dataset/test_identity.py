from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.dataset.identity import letters_and_digits, overlap, problem_id
from dapo_cli.types import Problem


def problem(text: str) -> Problem:
    return Problem(problem_id(text), text, (), "1", "s")


def test_problem_id_is_the_hash_of_the_normalised_text() -> None:
    # sha256("What is 3 + 4?") = 89359e5423b7bf6d...
    assert problem_id("What is 3 + 4?") == "89359e5423b7bf6d"
    assert problem_id("  What is\n3\t+ ４? ") == "89359e5423b7bf6d"  # full-width four: NFKC
    assert problem_id("what is 3 + 4?") != "89359e5423b7bf6d"


@given(st.lists(st.text(alphabet="ab1+", min_size=1)), st.sampled_from([" ", "\n", "\t ", " "]))
def test_white_space_does_not_change_the_id(words: list[str], space: str) -> None:
    assert problem_id(space + space.join(words) + space) == problem_id(" ".join(words))


def test_letters_and_digits_ignores_layout_and_keeps_numbers_apart() -> None:
    assert letters_and_digits("If $x = 1$, find \\[x^{2}\\].") == letters_and_digits("if x=1 Find x^2")
    assert letters_and_digits("1 + 23") != letters_and_digits("12 + 3")


def test_overlap_names_the_training_problems_a_benchmark_asks() -> None:
    train = [problem("Find $x$ if $x+2=5$."), problem("What is 3 + 4?"), problem("Find x, if x + 2 = 5")]
    benchmark = [problem("find x if x+2=5"), problem("What is 3 + 5?")]
    assert overlap(train, benchmark) == [train[0].problem_id, train[2].problem_id]
    assert overlap(train, []) == []

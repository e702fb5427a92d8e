import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.dataset.prompt_template import DAPO_TEMPLATE, TemplateStripper, apply_template
from dapo_cli.errors import UsageError


def test_template_is_the_published_one() -> None:
    # SHA-256 of the prompt in every row of the public aime-2024.parquet, its problem replaced by {problem}.
    digest = hashlib.sha256(DAPO_TEMPLATE.encode()).hexdigest()
    assert digest == "19f8301c9907321c5641b5cb8ef3b41cfc54f755747390833ffd06eb7a42c286"


@given(st.text())
def test_problem_text_is_put_in_untouched(problem: str) -> None:
    before, after = DAPO_TEMPLATE.split("{problem}")
    assert apply_template("dapo", problem) == before + problem + after
    assert apply_template("problem", problem) == problem
    assert apply_template("{x} {problem} \\frac{1}{2}", problem) == "{x} " + problem + " \\frac{1}{2}"


def test_custom_template_without_problem_is_refused() -> None:
    with pytest.raises(UsageError, match=r"prompt\.template"):
        apply_template("Dapo", "What is 3 + 4?")


@pytest.mark.parametrize("name", ["dapo", "boxed", "Q: {problem} A:"])
def test_a_template_that_the_data_carries_is_taken_off_once(name: str) -> None:
    strip = TemplateStripper("Q: {problem} A:").strip
    problem = "What is {1} + 1?\n\nRemember: \\boxed{2}"
    assert strip(apply_template(name, problem)) == (problem, True)
    assert strip(problem) == (problem, False)


def test_half_a_template_is_part_of_the_problem() -> None:
    text = apply_template("dapo", "What is 1 + 1?")[:-1]
    assert TemplateStripper("dapo").strip(text) == (text, False)

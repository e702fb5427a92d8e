from pathlib import Path

import pytest

from dapo_cli.dataset import cards
from dapo_cli.errors import UsageError


def test_every_shipped_card_is_valid_and_named_after_its_file() -> None:
    assert cards.card_names() == [
        "dapo_math_17k",
        "dapo_math_17k_processed",
        "gsm8k",
        "gsm8k_split",
        "one_digit_sums",
        "toy_sums",
    ]
    loaded = [cards.load_card(name) for name in cards.card_names()]
    assert [card.name for card in loaded if card] == cards.card_names()


def test_gsm8k_card_says_that_it_is_no_gsm8k_score() -> None:
    card = cards.load_card("gsm8k_split")
    assert card is not None
    assert "never a GSM8K score" in card.description
    assert card.file is not None


def test_unknown_name_has_no_card() -> None:
    assert cards.load_card("nothing") is None


GOOD = "name: x\ndescription: d\nlicense: l\ndata_source: s\nheldout_problems: 1\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD, "either `generator` or `file`"),
        (GOOD + "file: {}\ngenerator: sums\ndigits: 1\nterms: 2\nproblems: all\n", "either `generator` or `file`"),
        (GOOD + "generator: sums\ndigits: 1\n", "needs digits, terms and problems"),
        (GOOD + "file: {}\ndigits: 1\n", "belong to `generator: sums`"),
        (GOOD + "file: {problem_colum: q}\n", "file.problem_colum"),
        (GOOD.replace("heldout_problems: 1", "heldout_problems: -1") + "file: {}\n", "heldout_problems"),
        (GOOD.replace("name: x", "name: y") + "file: {}\n", "got 'y', want 'x'"),
        ("name: [\n", "not valid YAML"),
    ],
)
def test_bad_card_is_refused(text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_text(text)
    monkeypatch.setattr(cards, "resource_folder", lambda kind: tmp_path)
    with pytest.raises(UsageError, match=r"x\.yaml") as error:
        cards.load_card.__wrapped__("x")
    assert complaint in error.value.message

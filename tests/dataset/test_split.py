import pytest

from dapo_cli.dataset.cards import DatasetCard
from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.split import assert_disjoint, generated_split, heldout_ids
from dapo_cli.errors import UsageError, VerificationError

CARD = DatasetCard(
    name="sums",
    description="d",
    license="l",
    data_source="s",
    heldout_problems=7,
    generator="sums",
    digits=1,
    terms=2,
    problems="all",
)


def test_the_smallest_ids_are_held_out_whatever_their_order() -> None:
    assert heldout_ids(["c", "a", "d", "b"], 2, "x") == heldout_ids(["a", "b", "c", "d"], 2, "x") == {"a", "b"}
    assert heldout_ids(["a"], 0, "x") == frozenset()
    with pytest.raises(UsageError, match="only 2 problems of x are left"):
        heldout_ids(["a", "b", "b"], 2, "x")


def test_generated_problems_are_split_by_their_texts() -> None:
    split = generated_split(CARD, 7)
    assert (len(split.train), len(split.heldout)) == (93, 7)
    assert max(key for key, _ in split.heldout) < min(key for key, _ in split.train)
    assert all(key == problem_id(row.problem) for key, row in split.train + split.heldout)


def test_overlap_is_an_error() -> None:
    assert_disjoint(["a", "b"], ["c"])
    with pytest.raises(VerificationError, match="1 held-out problems are also in the training data, first: 'b '"):
        assert_disjoint(["a", "b"], ["c", "b "])

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.dataset.identity import problem_id
from dapo_cli.dataset.rows import Row, sum_rows
from dapo_cli.dataset.split import assert_disjoint, split_rows
from dapo_cli.errors import UsageError, VerificationError


def test_duplicates_keep_the_first_and_conflicts_drop_all() -> None:
    rows = [
        Row("1", "A?", "1"),
        Row("2", "B?", "2"),
        Row("3", "A?", "1 "),
        Row("4", "C?", "3"),
        Row("5", " B?", "4"),
        Row("6", "B?", "2"),
    ]
    split = split_rows(rows, heldout_problems=0)
    assert [row.where for _, row in split.train] == ["1", "4"]
    assert [row.where for row in split.duplicates] == ["3"]
    assert [[row.where for row in twins] for twins in split.conflicts] == [["2", "5", "6"]]


def test_the_smallest_ids_are_held_out() -> None:
    split = split_rows(sum_rows(1, 2, "all"), heldout_problems=30)
    assert len(split.heldout) == 30
    assert max(key for key, _ in split.heldout) < min(key for key, _ in split.train)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.integers(0, 7), st.randoms())
def test_the_split_depends_on_texts_alone(names: list[str], heldout: int, random: object) -> None:
    rows = [Row(str(place), name, "1") for place, name in enumerate(names)]
    shuffled = sorted(rows, key=lambda row: random.random())  # type: ignore[attr-defined]
    if heldout >= len(set(names)):
        with pytest.raises(UsageError, match="heldout_problems"):
            split_rows(rows, heldout)
        return
    split, other = split_rows(rows, heldout), split_rows(shuffled, heldout)
    assert {key for key, _ in split.heldout} == {key for key, _ in other.heldout}
    assert {key for key, _ in split.train}.isdisjoint(key for key, _ in split.heldout)
    assert len(split.train) + len(split.heldout) + len(split.duplicates) == len(rows)
    assert all(key == problem_id(row.problem) for key, row in split.train + split.heldout)


def test_overlap_of_train_and_heldout_is_found_by_content() -> None:
    assert_disjoint(["a b", "c"], ["d"])
    with pytest.raises(VerificationError, match="1 held-out problems are also in the training data"):
        assert_disjoint(["a b", "c"], ["d", "a  b"])

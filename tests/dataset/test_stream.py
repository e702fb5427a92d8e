from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.dataset.stream import ProblemStream
from dapo_cli.errors import UsageError
from dapo_cli.types import Problem


def problems(count: int, answer: str = "1") -> list[Problem]:
    return [Problem(f"{number:016x}", f"problem {number}", (), answer, "s") for number in range(count)]


@given(st.integers(1, 20), st.integers(0, 2**32), st.lists(st.integers(0, 30), max_size=5))
def test_every_epoch_is_a_permutation_however_it_is_drawn(count: int, seed: int, takes: list[int]) -> None:
    stream = ProblemStream(problems(count), seed)
    drawn = [pair for take in takes for pair in stream.take(take)]
    assert drawn == ProblemStream(problems(count), seed).take(sum(takes))
    assert [index for index, _ in drawn] == list(range(sum(takes)))
    for start in range(0, sum(takes) - count + 1, count):
        assert len({problem.problem_id for _, problem in drawn[start : start + count]}) == count
    assert stream.epochs == sum(takes) / count


@given(st.integers(0, 100), st.integers(0, 100))
def test_reloading_continues_with_the_same_items(before: int, after: int) -> None:
    stream = ProblemStream(problems(7), 3)
    stream.take(before)
    resumed = ProblemStream(problems(7), 3)
    resumed.take(11)  # what it did before loading does not matter
    resumed.load_state_dict(stream.state_dict())
    assert resumed.take(after) == stream.take(after)


def test_epochs_and_seeds_differ() -> None:
    orders = Counter(
        tuple(problem.problem_id for _, problem in stream.take(50))
        for seed in range(3)
        for stream in [ProblemStream(problems(50), seed)]
        for _ in range(3)
    )
    assert len(orders) == 9


@pytest.mark.parametrize(
    "other",
    [
        ProblemStream(problems(8), 3),
        ProblemStream(problems(7), 4),
        ProblemStream(problems(7, answer="2"), 3),
        ProblemStream(problems(7)[::-1], 3),
    ],
)
def test_state_of_another_stream_is_refused(other: ProblemStream) -> None:
    with pytest.raises(UsageError, match="the checkpoint drew from 7 problems"):
        other.load_state_dict(ProblemStream(problems(7), 3).state_dict())


def test_no_problems_are_refused() -> None:
    with pytest.raises(UsageError, match="no training problems"):
        ProblemStream([], 0)


def mixed(**sizes: int) -> list[Problem]:
    return [
        Problem(f"{name}{number}", f"{name} {number}", (), "7", "s", dataset=name)
        for name, size in sizes.items()
        for number in range(size)
    ]


def test_weights_hold_at_every_moment_and_every_dataset_has_its_own_epochs() -> None:
    stream = ProblemStream(mixed(a=6, b=50), 1, {"a": 3.0, "b": 1.0})
    taken = [problem for _, problem in stream.take(96)]
    for count in range(1, 97):
        assert abs(sum(problem.dataset == "a" for problem in taken[:count]) - 0.75 * count) < 1
    from_a = [problem.problem_id for problem in taken if problem.dataset == "a"]
    assert all(len(set(from_a[start : start + 6])) == 6 for start in range(0, 72, 6))
    assert from_a[:6] != from_a[6:12]  # 720 orders
    assert stream.epochs == 12  # 72 / 6


def test_a_weighted_stream_resumes_where_it_was() -> None:
    problems, weights = mixed(a=6, b=50), {"a": 3.0, "b": 1.0}
    stream = ProblemStream(problems, 1, weights)
    stream.take(37)
    other = ProblemStream(problems, 1, weights)
    other.load_state_dict(stream.state_dict())
    assert other.take(20) == stream.take(20)
    with pytest.raises(UsageError, match="resume with the data, the weights"):
        ProblemStream(problems, 1, {"a": 1.0, "b": 1.0}).load_state_dict(stream.state_dict())
    with pytest.raises(UsageError, match=r"dataset\.parts: c: no training problems"):
        ProblemStream(problems, 1, {"a": 1.0, "c": 1.0})

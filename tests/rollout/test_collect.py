"""Filling a step: refill, acceptance in submission order, the bound on draws, and an abandoned step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedGenerator, collector
from tiny import tiny_recipe


def recipe(**keys):
    return tiny_recipe(dynamic_sampling={"max_drawn_problems": 64} | keys)  # 4 prompts per step, groups of 4


def indices(groups):
    return [group.index for group in groups]


def test_one_new_problem_is_drawn_for_each_group_dropped():
    generator = ScriptedGenerator(lambda index: 0 if index % 3 else 2)
    step = collector(recipe(), generator).next_step()
    assert indices(step.kept) == [0, 3, 6, 9]
    assert indices(step.drawn) == list(range(10))
    assert generator.submissions == [[0, 1, 2, 3], [4], [5], [6], [7], [8], [9]]
    assert not step.exhausted


def test_whole_batches_draw_as_the_public_script_did_and_discard_the_surplus():
    generator = ScriptedGenerator(lambda index: 2 if index % 2 else 4)
    step = collector(recipe(refill="whole_batches", problems_per_batch=6), generator).next_step()
    assert generator.submissions == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert indices(step.kept) == [1, 3, 5, 7]
    assert indices(step.drawn) == list(range(12))


def test_the_next_step_goes_on_where_the_last_one_ended():
    generator = ScriptedGenerator(lambda index: 2)
    filled = collector(recipe(), generator)
    assert indices(filled.next_step().kept) == [0, 1, 2, 3]
    assert indices(filled.next_step().kept) == [4, 5, 6, 7]


@pytest.mark.parametrize(("right", "kept"), [(0, 0), (1, 4), (3, 4), (4, 0)])
def test_groups_are_judged_on_raw_correctness(right, kept):
    step = collector(recipe(max_drawn_problems=8), ScriptedGenerator(lambda index: right)).next_step()
    assert len(step.kept) == kept


def test_a_length_penalty_alone_never_makes_a_group_informative():
    """All wrong, with rewards that differ by their penalties: the bug that destroys a policy in 40 steps."""
    settings = tiny_recipe(
        dynamic_sampling={"max_drawn_problems": 8},
        rollout={"max_response_tokens": 2, "group_size": 4},
        reward={"overlong_buffer_length": 2},
    )
    step = collector(settings, ScriptedGenerator(lambda index: 0)).next_step()
    assert step.drawn[0].rollouts[0].overlong_penalty == -1.0
    assert step.kept == ()


def test_a_narrower_band_is_respected():
    settings = recipe(min_correct=2, max_correct=2, max_drawn_problems=12)
    step = collector(settings, ScriptedGenerator(lambda index: index % 5)).next_step()
    assert indices(step.kept) == [2, 7]


@pytest.mark.parametrize("refill", [{}, {"refill": "whole_batches", "problems_per_batch": 5}])
def test_the_bound_on_draws_ends_the_step_with_what_was_found(refill):
    generator = ScriptedGenerator(lambda index: 2 if index == 3 else 0)
    step = collector(recipe(max_drawn_problems=10, **refill), generator).next_step()
    assert indices(step.kept) == [3]
    assert len(step.drawn) == 10
    assert step.exhausted


def test_switched_off_every_group_is_kept_and_nothing_more_is_drawn():
    generator = ScriptedGenerator(lambda index: 0)
    step = collector(recipe(enabled=False), generator).next_step()
    assert indices(step.kept) == [0, 1, 2, 3]
    assert not step.exhausted


def test_seeds_differ_between_samples_positions_and_runs():
    settings = recipe()
    filled = collector(settings, ScriptedGenerator(lambda index: 2), num_problems=2)
    seeds = [filled.request(index, problem).seeds for index, problem in filled.stream.take(50)]
    assert len({seed for group in seeds for seed in group}) == 200
    other = collector(tiny_recipe(rollout={"seed": 1}), ScriptedGenerator(lambda index: 2))
    assert set(other.request(0, other.stream.take(1)[0][1]).seeds).isdisjoint(seeds[0])


def test_an_abandoned_step_leaves_the_position_where_it_was():
    calls = []

    def stop_at_the_third_group():
        calls.append(None)
        if len(calls) == 3:
            raise RuntimeError("stop")

    filled = collector(recipe(), ScriptedGenerator(lambda index: 2), stop_at_the_third_group)
    before = filled.state_dict()
    with pytest.raises(RuntimeError, match="stop"):
        filled.next_step()
    assert filled.state_dict() == before
    assert indices(filled.next_step().kept) == [0, 1, 2, 3]


def test_the_position_is_all_there_is_to_restore():
    first = collector(recipe(), ScriptedGenerator(lambda index: index % 5))
    first.next_step()
    second = collector(recipe(), ScriptedGenerator(lambda index: index % 5))
    second.stream.load_state_dict(first.state_dict()["stream"])
    one, two = first.next_step(), second.next_step()
    assert indices(one.drawn) == indices(two.drawn)
    assert [g.problem.problem_id for g in one.kept] == [g.problem.problem_id for g in two.kept]


@given(right=st.lists(st.integers(0, 4), min_size=64, max_size=64), batch=st.sampled_from([None, 4, 8, 16]))
def test_the_first_accepted_groups_in_submission_order_are_kept(right, batch):
    refill = {} if batch is None else {"refill": "whole_batches", "problems_per_batch": batch}
    step = collector(recipe(**refill), ScriptedGenerator(lambda index: right[index])).next_step()
    expected = [index for index in range(64) if 0 < right[index] < 4][:4]
    assert indices(step.kept) == expected
    assert indices(step.drawn) == list(range(len(step.drawn)))
    if len(expected) == 4 and batch is None:
        assert len(step.drawn) == expected[-1] + 1


@pytest.mark.parametrize("changes", [{}, {"enabled": False}])
def test_a_batch_size_inherited_from_whole_batches_changes_nothing_elsewhere(changes):
    settings = recipe(problems_per_batch=2, **changes)
    step = collector(settings, ScriptedGenerator(lambda index: 2)).next_step()
    assert (len(step.kept), len(step.drawn), step.exhausted) == (4, 4, False)

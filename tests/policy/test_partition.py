"""Dealing a minibatch to ranks: every row once, balanced, and the same weights as without ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import fixed_batch, tiny_recipe

from dapo_cli.policy.partition import assemble, deal, rollout_weights, shares


@given(st.lists(st.integers(1, 500), min_size=0, max_size=60), st.integers(1, 9))
def test_every_row_is_dealt_once_and_the_sums_are_nearly_equal(lengths, ranks):
    dealt = deal(np.array(lengths, dtype=np.int32), ranks)
    assert sorted(row for rows in dealt for row in rows.tolist()) == list(range(len(lengths)))
    assert all(np.all(np.diff(rows) > 0) for rows in dealt)
    sums = [sum(lengths[row] for row in rows.tolist()) for rows in dealt]
    assert max(sums) - min(sums) <= max(lengths, default=0)


@pytest.mark.parametrize("ranks", [2, 3, 20])
def test_shares_hold_the_rows_of_the_minibatch_with_its_weights(ranks):
    batch, train = fixed_batch(), tiny_recipe().train
    parts = shares(batch, ranks, train)
    weights = rollout_weights(batch, train)
    for part, rows in zip(parts, deal(batch.lengths, ranks), strict=True):
        np.testing.assert_array_equal(part.weights, weights[rows])
        one_by_one = [batch.rows(row, row + 1) for row in rows.tolist()]
        for name in ("token_ids", "prompt_lengths", "advantages", "in_loss", "old_logprobs", "rollout_logprobs"):
            pieces = [getattr(one, name) for one in one_by_one]
            expected = np.concatenate(pieces) if pieces else getattr(batch, name)[:0]
            np.testing.assert_array_equal(getattr(part.rows, name), expected, err_msg=name)
    assert len({part.num_microbatches for part in parts}) == 1
    assert {part.num_loss_tokens for part in parts} == {int(batch.response_lengths[batch.in_loss].sum())}


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_values_of_the_shares_are_put_back_in_the_order_of_the_minibatch(ranks):
    batch, train = fixed_batch(), tiny_recipe().train
    parts = [part.rows.old_logprobs for part in shares(batch, ranks, train)]
    np.testing.assert_array_equal(assemble(batch, parts), batch.old_logprobs)

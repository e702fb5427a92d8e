"""The filters keep what their definitions say, and the draw inverts the distribution."""

import numpy as np
import torch
from samplings import changed

from dapo_cli.rollout.sampling import UniformStreams, filtered, next_tokens

PROBABILITIES = [0.4, 0.3, 0.2, 0.1]
SCORES = torch.tensor([PROBABILITIES]).log()


def kept(**fields):
    return torch.isfinite(filtered(SCORES, changed(**fields)))[0].tolist()


def test_filters_keep_the_likeliest():
    assert kept() == [True, True, True, True]
    assert kept(top_k=2) == [True, True, False, False]
    assert kept(top_p=0.7) == [True, True, False, False]
    assert kept(top_p=0.71) == [True, True, True, False]
    assert kept(top_p=0.1) == [True, False, False, False]
    assert kept(min_p=0.6) == [True, True, False, False]


def test_the_draw_inverts_the_cumulative_distribution_and_records_its_logprob():
    uniform = torch.tensor([0.0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 0.999999], dtype=torch.float64)
    tokens, logprobs = next_tokens(SCORES.expand(8, 4), uniform, changed())
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(logprobs.exp().numpy(), np.array(PROBABILITIES)[tokens], rtol=1e-6)


def test_recorded_logprobs_are_of_the_filtered_distribution():
    uniform = torch.tensor([0.999], dtype=torch.float64)
    tokens, logprobs = next_tokens(SCORES, uniform, changed(top_p=0.7))
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs.exp().item(), 0.3 / 0.7, rtol=1e-6)


def test_streams_go_on_over_blocks_and_dropped_rows():
    device = torch.device("cpu")
    whole = UniformStreams([1, 2, 3])
    numbers = torch.stack([whole.at(position, device) for position in range(150)])
    part = UniformStreams([1, 2, 3])
    for position in range(70):
        part.at(position, device)
    part.keep(torch.tensor([0, 2]))
    rest = torch.stack([part.at(position, device) for position in range(70, 150)])
    assert torch.equal(rest, numbers[70:, [0, 2]])
    assert len(torch.unique(numbers)) == 450

"""Helpers in tests/policy are shared by the tests of the stages built on it; torch runs on one thread everywhere."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "policy"))
torch.set_num_threads(1)

"""torch runs on one thread in every test."""

import torch

torch.set_num_threads(1)

"""Reproduce, check and extend DAPO, the open RL system for large language models (arXiv 2503.14476)."""

__version__ = "0.1.0"

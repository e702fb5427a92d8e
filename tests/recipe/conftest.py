"""A small valid recipe whose lines the tests edit."""

from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
model: {path: toy}
dataset: {name: toy_sums}
rollout:
  group_size: 8
  max_response_tokens: 32
dynamic_sampling:
  max_drawn_problems: 320
train:
  steps: 10
  prompts_per_step: 32
  prompts_per_minibatch: 8
  tokens_per_microbatch: 4096
  warmup_steps: 2
  learning_rate: 1e-6
"""


@pytest.fixture
def write_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes x.yaml (or `name`) into an empty working directory: the small recipe after (old, new) replacements.

    An edit whose old text is empty appends its new text, from line 15 on.
    """
    monkeypatch.chdir(tmp_path)

    def write(*edits: tuple[str, str], text: str = RECIPE, name: str = "x.yaml") -> str:
        for old, new in edits:
            assert not old or text.count(old) == 1, f"{old!r} is not in the recipe exactly once"
            text = text.replace(old, new) if old else text + new
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    return write

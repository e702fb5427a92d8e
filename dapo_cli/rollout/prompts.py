"""From problems to the token ids the engine sees, and where a response ends. Nothing is ever cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.errors import UsageError
from dapo_cli.recipe.schema import Prompt, Rollout
from dapo_cli.types import Message, Problem, Sampling

# How many tokens of the first prompt are shown by themselves: enough to see the generation prompt.
_SHOWN_LAST_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """A problem as text and as token ids."""

    problem: Problem
    text: str
    prompt_ids: npt.NDArray[np.int32]  # [prompt tokens]


class PromptRenderer:
    """Renders problems by the recipe's `prompt` section with one tokenizer.

    Raises:
        UsageError: chat format without a chat template, or a jinja file that does not exist.
    """

    def __init__(self, tokenizer: Any, prompt: Prompt) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt
        self._chat_template = self._read_chat_template()

    def _read_chat_template(self) -> str | None:
        if self.prompt.format == "plain":
            return None
        if self.prompt.chat_template is not None:
            path = Path(self.prompt.chat_template)
            if not path.is_file():
                raise UsageError(f"prompt.chat_template: {path}: no such file")
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"prompt.chat_template: {path}: not a UTF-8 text file") from error
            if not text.strip():
                raise UsageError(f"prompt.chat_template: {path}: the file is empty")
            return text
        if not getattr(self.tokenizer, "chat_template", None):
            raise UsageError(
                "prompt.format: chat: the tokenizer has no chat template",
                hint="prompt.format: plain, or prompt.chat_template: FILE.jinja",
            )
        return None

    def render(self, problem: Problem) -> RenderedPrompt:
        """The text and token ids of one problem."""
        if self.prompt.format == "plain":
            text = self._plain(problem)
            ids = self.tokenizer(text).input_ids
        else:
            text = self._checked_chat(problem)
            # The template has written every special token already.
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        if not ids:
            raise UsageError(f"prompt: the prompt of problem {problem.problem_id} is empty")
        return RenderedPrompt(problem, text, np.array(ids, dtype=np.int32))

    def _plain(self, problem: Problem) -> str:
        parts = [
            f"{apply_template(self.prompt.template, example.problem)} {example.answer}"
            for example in self.prompt.few_shot
        ]
        parts.append("\n\n".join(message["content"] for message in problem.messages))
        return self.prompt.few_shot_separator.join(parts)

    def _checked_chat(self, problem: Problem) -> str:
        from jinja2 import TemplateError

        try:
            return self._chat(problem)
        except (TemplateError, TypeError, ValueError) as error:
            where = self.prompt.chat_template or "the tokenizer's own"
            raise UsageError(f"prompt.chat_template: {where}: cannot be rendered: {error}") from error

    def _chat(self, problem: Problem) -> str:
        messages: list[Message] = []
        if self.prompt.system is not None:
            messages.append({"role": "system", "content": self.prompt.system})
        for example in self.prompt.few_shot:
            messages.append({"role": "user", "content": apply_template(self.prompt.template, example.problem)})
            messages.append({"role": "assistant", "content": example.answer})
        text: str = self.tokenizer.apply_chat_template(
            [*messages, *problem.messages],
            chat_template=self._chat_template,
            tokenize=False,
            add_generation_prompt=True,
            **self.prompt.template_arguments,
        )
        return text

    def render_all(self, problems: Sequence[Problem]) -> tuple[list[RenderedPrompt], int]:
        """All prompts, and how many were dropped for their length.

        Raises:
            UsageError: a prompt is too long and `prompt.long_prompts` is refuse, or none is left.
        """
        limit = self.prompt.max_prompt_tokens
        # Rows that repeat a problem share its object.
        once = {id(problem): problem for problem in problems}
        known = {key: self.render(problem) for key, problem in once.items()}
        rendered = [known[id(problem)] for problem in problems]
        fitting = [prompt for prompt in rendered if len(prompt.prompt_ids) <= limit]
        dropped = len(rendered) - len(fitting)
        if dropped and self.prompt.long_prompts == "refuse":
            longest = max(rendered, key=lambda prompt: len(prompt.prompt_ids))
            raise UsageError(
                f"prompt.max_prompt_tokens: {dropped} of {len(rendered)} prompts are longer than {limit} tokens; the "
                f"longest has {len(longest.prompt_ids)} (problem {longest.problem.problem_id})",
                hint=f"raise prompt.max_prompt_tokens to {len(longest.prompt_ids)}, or prompt.long_prompts: drop",
            )
        if not fitting:
            raise UsageError(f"prompt.max_prompt_tokens: no prompt fits into {limit} tokens")
        return fitting, dropped


def stop_token_ids(rollout: Rollout, generation_config: Any) -> tuple[int, ...]:
    """The token ids that end a response: the recipe's, or those of the checkpoint's generation config.

    Raises:
        UsageError: the generation config names none.
    """
    if rollout.stop_token_ids != "generation_config":
        return tuple(rollout.stop_token_ids)
    ids = generation_config.eos_token_id
    if ids is None:
        raise UsageError(
            "rollout.stop_token_ids: the checkpoint's generation config names no eos_token_id",
            hint="name the ids: rollout.stop_token_ids: [2]",
        )
    return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def training_sampling(rollout: Rollout, stop_ids: tuple[int, ...]) -> Sampling:
    """Every sampling field of a training rollout, stated."""
    return Sampling(
        max_response_tokens=rollout.max_response_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        stop_token_ids=stop_ids,
        stop_strings=rollout.stop_strings,
    )


def describe_prompt(prompt: RenderedPrompt, tokenizer: Any, sampling: Sampling) -> dict[str, Any]:
    """The first prompt as it really is, for the screen and the run's manifest."""
    last = prompt.prompt_ids[-_SHOWN_LAST_TOKENS:].tolist()
    return {
        "text": prompt.text,
        "tokens": len(prompt.prompt_ids),
        "last_tokens": tokenizer.convert_ids_to_tokens(last),
        "last_token_ids": last,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop_tokens": tokenizer.convert_ids_to_tokens(list(sampling.stop_token_ids)),
        "stop_strings": list(sampling.stop_strings),
    }

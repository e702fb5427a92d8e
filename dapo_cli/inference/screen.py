"""What `dapo infer` shows: responses as they are sampled, one after the other, or a line for each that has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from dapo_cli.inference.response import Judged, LiveResponse
from dapo_cli.inference.setup import Setup
from dapo_cli.recipe.scorers import scorer_names
from dapo_cli.reward.explain import Explanation, visible
from dapo_cli.rollout.prompts import RenderedPrompt, describe_prompt
from dapo_cli.types import Sampling

_CONTEXT_CHARACTERS = 40


class StreamedScreen:
    """Responses in the order they were asked for, the first unfinished one token by token.

    They are sampled side by side: what came of a later one is kept until it is its turn.
    """

    def __init__(self, setup: Setup, samples: int, out: TextIO) -> None:
        self._setup = setup
        self._samples = samples
        self._out = out
        self._queue: list[LiveResponse] = []
        self._ended: dict[int, Judged] = {}
        self._shown: RenderedPrompt | None = None
        self._begun = False

    def expect(self, responses: Iterable[LiveResponse]) -> None:
        """These will come."""
        self._queue = list(responses)

    def heard(self, response: LiveResponse) -> None:
        """The response has grown."""
        if self._queue and response is self._queue[0]:
            self._show_text(response)

    def ended(self, response: LiveResponse, judged: Judged) -> None:
        """Nothing more comes of the response."""
        self._ended[response.seed] = judged
        while self._queue and self._queue[0].seed in self._ended:
            first = self._queue.pop(0)
            self._show_text(first)
            self._begun = False
            self._line("")
            for line in report_lines(first, self._ended.pop(first.seed), self._setup):
                self._line(line)
            self._line("")
            if self._queue and self._queue[0].tokens:
                self._show_text(self._queue[0])

    def _show_text(self, response: LiveResponse) -> None:
        if not self._begun:
            self._begun = True
            if self._shown is not response.prompt:
                self._shown = response.prompt
                for line in prompt_lines(response.prompt, self._setup):
                    self._line(line)
            number = f" {response.sample + 1} of {self._samples}" if self._samples > 1 else ""
            self._line(f"--- response{number}")
        self._out.write(printable(response.take_text()) if self._out.isatty() else response.take_text())
        self._out.flush()

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")


class LinesScreen:
    """One line per response, in the order in which they end."""

    def __init__(self, done: int, total: int, out: TextIO) -> None:
        self._done = done
        self._total = total
        self._out = out

    def expect(self, responses: Iterable[LiveResponse]) -> None:
        """Nothing is shown before something has ended."""

    def heard(self, response: LiveResponse) -> None:
        """Nothing is shown of a part."""

    def ended(self, response: LiveResponse, judged: Judged) -> None:
        """Show the response's line."""
        if response.ending == "interrupted":
            return
        self._done += 1
        truncated = ", truncated" if response.ending == "length" else ""
        verdict = "" if judged.outcome is None else f", {judged.outcome} (gold {visible(str(judged.gold))})"
        answer = "no answer" if judged.prediction is None else f"answer {visible(judged.prediction)}"
        self._out.write(
            f"{self._done} of {self._total}: {response.prompt.problem.problem_id} sample {response.sample}: "
            f"{answer}{verdict}, {response.tokens} tokens{truncated}\n"
        )
        self._out.flush()


def prompt_lines(prompt: RenderedPrompt, setup: Setup) -> list[str]:
    """The prompt as the model sees it, and the tokens it ends with."""
    shown = describe_prompt(prompt, setup.tokenizer, setup.sampling)
    section = setup.recipe.prompt
    last = " ".join(
        f"{token!r}={number}" for token, number in zip(shown["last_tokens"], shown["last_token_ids"], strict=True)
    )
    few_shot = f", {len(section.few_shot)} solved examples" if section.few_shot else ""
    return [
        f"--- prompt: template {setup.template}, format {section.format}{few_shot}, {shown['tokens']} tokens",
        printable(prompt.text),
        f"--- the prompt's last tokens: {last}",
    ]


def report_lines(response: LiveResponse, judged: Judged, setup: Setup) -> list[str]:
    """Extracted answer and how, verdict where there is one, speed, and why the response ended."""
    lines = ["--- " + ending_line(response, setup.sampling)]
    if judged.explanation is None:
        names = ", ".join(scorer_names(setup.recipe.reward.scorer))
        lines.append(f"answer: not extracted: the scorer {names} needs the right answer (--gold)")
    else:
        lines += answer_lines(judged.explanation)
    if judged.outcome is not None and judged.explanation is not None:
        verdict = judged.explanation.verdict
        reason = f" ({verdict.error})" if verdict.error else ""
        lines.append(f"verdict: {verdict.outcome}, score {verdict.score:+g}{reason}; gold {visible(str(judged.gold))}")
    return [*lines, speed_line(response)]


def ending_line(response: LiveResponse, sampling: Sampling) -> str:
    """Why there is nothing after the last token."""
    if response.ending == "interrupted":
        return f"INTERRUPTED after {response.tokens} tokens: the response had not ended"
    if response.ending == "length":
        return f"finish reason length: TRUNCATED at {sampling.max_response_tokens} tokens, the response had not ended"
    last = response.stream.ids[-1]
    what = f"stop token {last}" if last in sampling.stop_token_ids else "a stop string"
    return f"finish reason stop: {what}"


def answer_lines(explanation: Explanation) -> list[str]:
    """The extracted answer, where it stands, and what was done to it."""
    answer = explanation.verdict.prediction
    shown = "none" if answer is None else visible(answer)
    lines = [f"answer: {shown}  (scorer {explanation.scorer} reads {explanation.looked_for})"]
    if explanation.place is not None:
        start, end = explanation.place
        text = explanation.response
        before, after = text[max(0, start - _CONTEXT_CHARACTERS) : start], text[end : end + _CONTEXT_CHARACTERS]
        lines.append(f"  at character {start}: {visible(before)}»{visible(text[start:end])}«{visible(after)}")
    return [*lines, *(f"  {visible(text)}  [{words}]" for words, text in explanation.answer_steps)]


def speed_line(response: LiveResponse) -> str:
    """Tokens, seconds and tokens per second."""
    if response.first_token_at is None:
        return "0 tokens"
    rate = response.tokens_per_second
    after = "" if rate is None else f", then {rate:.1f} tokens/s"
    first = f"the first after {response.first_token_at:.2f} s"
    return f"{response.tokens} tokens in {response.last_token_at:.2f} s: {first}{after}"


def printable(text: str) -> str:
    r"""Text that cannot steer a terminal: control characters but line ends and tabs are written out.

    >>> printable("a\tb\n\x1b[31m")
    'a\tb\n\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


Screen = StreamedScreen | LinesScreen

"""From a problem to the text of the user message, and back where the data already carries a template."""

from __future__ import annotations

from dapo_cli.errors import UsageError

DAPO_TEMPLATE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
"""The published prompt format, byte for byte (column `prompt` of the public DAPO parquet files)."""

BOXED_TEMPLATE = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Asks for the last \\boxed{} that the scorers boxed, dapo_2026_08, integer and math_verify read."""

NAMED = {"dapo": DAPO_TEMPLATE, "boxed": BOXED_TEMPLATE, "problem": "{problem}"}
"""What `prompt.template` may name."""


def template_text(template: str) -> str:
    """The text behind `prompt.template`: a named one, or the custom text itself.

    >>> template_text("problem")
    '{problem}'

    Raises:
        UsageError: a custom text without `{problem}`.
    """
    text = NAMED.get(template, template)
    if "{problem}" not in text:
        names = ", ".join(NAMED)
        raise UsageError(f"prompt.template: want {names}, or a text that contains {{problem}}, got {template!r}")
    return text


def apply_template(template: str, problem: str) -> str:
    """The text of the user message; every other brace of template and problem stays as it is.

    >>> apply_template("Q: {problem} {x}", "What is {1, 2}?")
    'Q: What is {1, 2}? {x}'

    Raises:
        UsageError: a custom text without `{problem}`.
    """
    return template_text(template).replace("{problem}", problem)


class TemplateStripper:
    """Finds the problem in a text that may already carry a template: a named one, or the recipe's own.

    >>> strip = TemplateStripper("Q: {problem}").strip
    >>> strip("Q: What is 2 + 2?"), strip("What is 2 + 2?")
    (('What is 2 + 2?', True), ('What is 2 + 2?', False))
    """

    def __init__(self, template: str) -> None:
        texts = dict.fromkeys([*NAMED.values(), template_text(template)])
        ends = [text.split("{problem}") for text in texts]
        # A template that repeats the problem cannot be undone by cutting its ends off.
        self._ends = [(pair[0], pair[1]) for pair in ends if len(pair) == 2 and any(part.strip() for part in pair)]

    def strip(self, text: str) -> tuple[str, bool]:
        """The problem alone, and whether a template was found around it."""
        for before, after in self._ends:
            if text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after):
                return text[len(before) : len(text) - len(after)], True
        return text, False

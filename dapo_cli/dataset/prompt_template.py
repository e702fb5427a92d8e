"""From a problem to the text of the user message."""

from __future__ import annotations

from dapo_cli.errors import UsageError

DAPO_TEMPLATE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
"""The published prompt format, byte for byte (column `prompt` of the public DAPO parquet files)."""


def template_text(template: str) -> str:
    """The text behind `prompt.template`: the DAPO instruction, the problem alone, or the custom text itself.

    >>> template_text("problem")
    '{problem}'

    Raises:
        UsageError: a custom text without `{problem}`.
    """
    text = {"dapo": DAPO_TEMPLATE, "problem": "{problem}"}.get(template, template)
    if "{problem}" not in text:
        raise UsageError(f"prompt.template: want dapo, problem, or a text that contains {{problem}}, got {template!r}")
    return text


def apply_template(template: str, problem: str) -> str:
    """The text of the user message; every other brace of template and problem stays as it is.

    >>> apply_template("Q: {problem} {x}", "What is {1, 2}?")
    'Q: What is {1, 2}? {x}'

    Raises:
        UsageError: a custom text without `{problem}`.
    """
    return template_text(template).replace("{problem}", problem)

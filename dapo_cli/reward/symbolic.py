r"""Answers compared as mathematics by the library math-verify: LaTeX, fractions, sets, intervals, matrices.

`fast_verdict` settles plain integers without the library. `judge` does the rest and runs in a worker process, where a
clock and a memory limit hold; the library's own alarms are off. Text is parsed and never evaluated: what the library
would hand to Python's parser as arithmetic is built from its syntax tree instead.
"""

from __future__ import annotations

import ast
import logging
import re
from typing import Any

from dapo_cli.reward.final_answer import ANSWER_CHARACTERS, final_answer, last_box, without_tokens

_PLAIN_INTEGER = re.compile(r"\$?\s*(-?[0-9]{1,40})\s*\$?\.?")
_HAS_MATH_MARKS = re.compile(r"\$|\\\(|\\\[|\\boxed")
_FORMULA = re.compile(r"[A-Za-z()\[\]{}^_]")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3}")
_PREDICTION_CHARACTERS = 300


def answer_text(response: str) -> str:
    r"""What the library is given: the last answer line, or the end of the response for it to look through.

    An answer line that is one formula without marks is marked, as the library would see only its numbers. A box is left
    where it is, as the library joins several: `\boxed{1} and \boxed{2}` is a set of two.

    >>> answer_text("First 3.\nAnswer: 1/2"), answer_text(r"So \boxed{7}.")
    ('1/2', 'So \\boxed{7}.')
    >>> answer_text(r"Answer: \frac12"), answer_text("Answer: 5 minutes")
    ('$\\frac12$', '5 minutes')
    """
    answer = final_answer(response)
    if answer is None or answer.form == "box":
        return response[-ANSWER_CHARACTERS:]
    text = without_tokens(answer.text)
    bare = _FORMULA.search(text) and not _HAS_MATH_MARKS.search(text) and not _WORD.search(_COMMAND.sub(" ", text))
    return f"${text}$" if bare else text


def fast_verdict(response: str, ground_truth: str) -> dict[str, Any] | None:
    """The verdict where ground truth and final answer are both plain integers; None where the library is needed.

    >>> fast_verdict("Answer: 007", "7"), fast_verdict("Answer: 7/1", "7")
    ({'outcome': 'right', 'prediction': '7'}, None)
    """
    wanted = _plain_integer(_out_of_its_box(ground_truth))
    answer = None if wanted is None else final_answer(response)
    if answer is None or (answer.form == "box" and response[-ANSWER_CHARACTERS:].count("boxed") > 1):
        return None
    found = _plain_integer(answer.text)
    if found is None:
        return None
    return {"outcome": "right" if found == wanted else "wrong", "prediction": found}


def _out_of_its_box(text: str) -> str:
    box = last_box(text)
    return text if box is None else box.text


def _plain_integer(text: str) -> str | None:
    found = _PLAIN_INTEGER.fullmatch(text.strip())
    return None if found is None else str(int(found[1]))


def marked(ground_truth: str) -> str:
    """A ground truth as the library's parser wants it: between dollar signs, where it has no marks of its own.

    A price is its number: the library takes an escaped dollar sign for a mark, and then reads nothing.

    >>> marked("x^2"), marked("$x$"), marked("\\\\$6")
    ('$x^2$', '$x$', '$6$')
    """
    ground_truth = ground_truth.replace("\\$", "")
    return ground_truth if _HAS_MATH_MARKS.search(ground_truth) else f"${ground_truth}$"


def judge(response: str, ground_truth: str) -> dict[str, Any]:
    """Outcome and prediction by the library; the comparison is not symmetric, ground truth first.

    Raises:
        MemoryError: parsing or comparing took more than the limit.
        ImportError: math-verify is not installed.
    """
    from math_verify import parse

    load()
    wanted = parse(marked(ground_truth), parsing_timeout=None)
    if not wanted:
        return {"outcome": "verifier_error", "error": f"the ground truth {ground_truth[:80]!r} cannot be parsed"}
    found = parse(answer_text(response), parsing_timeout=None)
    if not found:
        return {"outcome": "no_answer", "prediction": None}
    # As written: printing a parsed expression can take forever.
    prediction = next((item for item in found if isinstance(item, str)), "")[:_PREDICTION_CHARACTERS]
    return {"outcome": "right" if equal(wanted, found) else "wrong", "prediction": prediction}


def equal(wanted: list[Any], found: list[Any], **options: Any) -> bool:
    """Whether one reading of the answer equals one of the ground truth.

    Raises:
        MemoryError: none was found equal and a comparison ran out of memory.
    """
    from math_verify import verify

    out_of_memory: MemoryError | None = None
    for gold in wanted:
        for answer in found:
            try:
                if verify(gold, answer, timeout_seconds=None, raise_on_error=True, **options):
                    return True
            except MemoryError as error:
                out_of_memory = error
            except Exception:
                # What cannot be compared is not equal; this is the library's own rule.
                continue
    if out_of_memory is not None:
        raise out_of_memory
    return False


def describe(text: str) -> str:
    """How the library reads `text`, for people; may take forever for a hostile one."""
    from math_verify import parse

    load()
    return ", ".join(f"{item} ({type(item).__name__})" for item in parse(text, parsing_timeout=None)) or "nothing"


def load() -> None:
    """Import the library, silence it, and replace its use of Python's parser.

    Raises:
        ImportError: math-verify is not installed.
    """
    import math_verify.grader
    import math_verify.parser

    math_verify.parser.parse_expr = arithmetic
    math_verify.parser.TIMEOUT_WARNING_SHOWN = True
    math_verify.grader.TIMEOUT_WARNING_SHOWN = True
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def arithmetic(text: str, evaluate: bool = False) -> Any:
    """Arithmetic on numbers as an unevaluated sympy expression, from the syntax tree; no code is run.

    Raises:
        ValueError: something else than + - * / ** and numbers (`SyntaxError` is not a ValueError, and is let through).
    """
    return _build(ast.parse(text.strip(), mode="eval").body)


def _build(node: ast.expr) -> Any:
    from sympy import Add, Float, Integer, Mul, Pow

    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return Integer(node.value) if isinstance(node.value, int) else Float(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _build(node.operand)
        return Mul(-1, operand, evaluate=False) if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = _build(node.left), _build(node.right)
        if isinstance(node.op, ast.Add):
            return Add(left, right, evaluate=False)
        if isinstance(node.op, ast.Sub):
            return Add(left, Mul(-1, right, evaluate=False), evaluate=False)
        if isinstance(node.op, ast.Mult):
            return Mul(left, right, evaluate=False)
        if isinstance(node.op, ast.Div):
            return Mul(left, Pow(right, -1, evaluate=False), evaluate=False)
        if isinstance(node.op, ast.Pow):
            return Pow(left, right, evaluate=False)
    raise ValueError(f"not arithmetic: {ast.dump(node)[:80]}")

"""The names a recipe can give as `reward.scorer`, and what follows from each before anything runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from dapo_cli.errors import UsageError

ANSWER_LINE = "Answer:"
BOX = "\\boxed"

READS: dict[str, tuple[str, ...]] = {
    "dapo": (ANSWER_LINE,),
    "dapo_2026_08": (ANSWER_LINE, BOX),
    "boxed": (BOX,),
    "integer": (ANSWER_LINE, BOX),
    "math_verify": (ANSWER_LINE, BOX),
}
"""Scorers by name, and the forms of an answer each one reads, the usual one first."""

_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def scorer_names(scorer: str | tuple[str, ...]) -> tuple[str, ...]:
    """The scorers of `reward.scorer` in the order they are asked.

    >>> scorer_names("dapo"), scorer_names(("dapo", "boxed"))
    (('dapo',), ('dapo', 'boxed'))
    """
    return (scorer,) if isinstance(scorer, str) else scorer


def is_own_scorer(name: str) -> bool:
    """Whether `name` is the module:function of a user.

    >>> [is_own_scorer(name) for name in ("my_scorer:score", "dapo", "my scorer:score")]
    [True, False, False]
    """
    return _OWN.fullmatch(name) is not None


def needs_workers(name: str) -> bool:
    """Whether a scorer runs in worker processes, because what it computes may take any time and memory."""
    return name == "math_verify" or is_own_scorer(name)


def forms_read(scorer: str | tuple[str, ...]) -> tuple[str, ...] | None:
    """Every form of an answer that one of the scorers reads; None when a user's own decides that.

    >>> forms_read(("dapo", "boxed")), forms_read("mine:score")
    (('Answer:', '\\\\boxed'), None)
    """
    names = scorer_names(scorer)
    if any(name not in READS for name in names):
        return None
    return tuple(dict.fromkeys(form for name in names for form in READS[name]))


def name_problem(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a scorer and what to do; None when it is a good one.

    >>> name_problem("boxd")[1]
    'did you mean boxed?'
    """
    if name in READS or is_own_scorer(name):
        return None
    close = difflib.get_close_matches(name, READS, n=1)
    advice = f"did you mean {close[0]}?" if close else "name one of them"
    return f"{name!r} is neither {', '.join(READS)} nor module:function", advice


def check_names(names: Sequence[str]) -> None:
    """Refuse a scorer that there is not.

    Raises:
        UsageError: one is neither named here nor module:function.
    """
    for name in names:
        problem = name_problem(name)
        if problem is not None:
            raise UsageError(f"scorer: {problem[0]}", hint=problem[1])

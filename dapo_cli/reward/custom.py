"""A user's own scorer: `module:function`, called as `score(response, ground_truth, problem)` in a worker process."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_PREDICTION_CHARACTERS = 300


@cache
def load(name: str) -> Callable[[str, str, dict[str, Any]], Any]:
    """The function behind `module:function`; the working folder is searched last.

    Raises:
        ImportError: there is no such module, or nothing callable of that name in it. What the module itself raises
            while it is imported goes through.
    """
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it is there, and misses something that it imports
        raise ModuleNotFoundError(_no_module(module_name)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ImportError(_no_function(module, function_name))
    return function  # type: ignore[no-any-return]


def _no_module(name: str) -> str:
    if name.endswith(".py"):
        return f"want a module and a function, {name.removesuffix('.py').replace('/', '.')}:FUNCTION, got a file name"
    return f"no {name.replace('.', '/')}.py in {os.getcwd()}, and no installed module {name}"


def _no_function(module: ModuleType, name: str) -> str:
    place = getattr(module, "__file__", None) or "built into Python"
    text = f"module {module.__name__} ({place}) has no function {name}"
    own = Path(*module.__name__.split(".")).with_suffix(".py")
    if own.is_file() and not (Path(place).is_file() and own.samefile(place)):
        return f"{text}; {own} in the working folder is not read, because that module comes first: rename it"
    functions = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return f"{text}; it has {', '.join(functions)}" if own.is_file() and functions else text


def judge(name: str, response: str, ground_truth: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Call the user's scorer and read what it returns.

    Raises:
        ValueError: it returned something else than `read_result` takes. Its own exceptions go through.
    """
    return read_result(load(name)(response, ground_truth, problem))


def read_result(result: Any) -> dict[str, Any]:
    """Outcome, score and prediction of a returned value: a bool, a finite number, or a dict.

    A number is the score, and right when above 0. A dict has `score`, and may have `correct` (whether it is right),
    `prediction` (text, or None for no answer).

    Raises:
        ValueError: the value is none of these.

    >>> read_result(True), read_result(0.25)["outcome"]
    ({'outcome': 'right', 'score': 1.0, 'prediction': None}, 'right')
    >>> read_result({"score": 0.5, "correct": False, "prediction": None})["outcome"]
    'no_answer'
    """
    values = dict(result) if isinstance(result, dict) else {"score": result}
    unknown = sorted(set(values) - {"score", "correct", "prediction"})
    if unknown or "score" not in values:
        raise ValueError(f"a dict needs score and may have correct and prediction, got the keys {sorted(values)}")
    score = _number(values["score"])
    correct = values.get("correct", score > 0)
    prediction = values.get("prediction")
    if type(correct).__name__ not in ("bool", "bool_") or not isinstance(prediction, str | None):
        raise ValueError(f"correct must be a bool and prediction a text or None, got {correct!r} and {prediction!r}")
    outcome = "right" if correct else "no_answer" if "prediction" in values and prediction is None else "wrong"
    return {"outcome": outcome, "score": score, "prediction": prediction and prediction[:_PREDICTION_CHARACTERS]}


def _number(value: Any) -> float:
    if type(value).__name__ in ("bool", "bool_"):
        return 1.0 if value else -1.0
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"want a bool, a finite number or a dict, got {value!r:.80}")
    return number

"""Contradictions within the section `dataset`, and between it, the prompt and the scorers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dapo_cli.recipe.contradiction import Problem, Rule
from dapo_cli.recipe.schema import Recipe
from dapo_cli.recipe.scorers import ANSWER_LINE, BOX, READS, forms_read, name_problem, scorer_names

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
OF_ONE_SOURCE = ("source", "revision", "files", "problem_column", "answer_column", "heldout_problems")
"""Keys of `dataset` that belong to one dataset: with several, each part has its own."""


def _names(recipe: Recipe) -> Iterator[Problem]:
    parts = recipe.dataset.parts
    for name in (recipe.dataset.name, *(part.name for part in parts)):
        if not _NAME.fullmatch(name):
            yield Problem(
                ("dataset.name",) if name == recipe.dataset.name else ("dataset.parts",),
                f"{name!r} cannot be the name of a folder",
                "use up to 100 letters, digits, dots, dashes and underscores",
            )
    names = [part.name for part in parts]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        yield Problem(
            ("dataset.parts",), f"{repeated[0]!r} is there twice", "give each part a name of its own: metrics go by it"
        )


def _one_or_several(recipe: Recipe) -> Iterator[Problem]:
    stated = [key for key in OF_ONE_SOURCE if recipe.dataset.parts and getattr(recipe.dataset, key) not in (None, ())]
    for key in stated:
        yield Problem(
            (f"dataset.{key}", "dataset.parts"),
            "belongs to one dataset, and dataset.parts names several",
            "put it into the part that it is meant for",
        )


def _weights(recipe: Recipe) -> Iterator[Problem]:
    weights = [part.weight for part in recipe.dataset.parts]
    if any(weights) and not all(weights):
        yield Problem(
            ("dataset.parts",),
            "some parts have a weight and others have none",
            "give every part a weight, or none: then they are drawn by their numbers of problems",
        )


def _scorers(recipe: Recipe) -> Iterator[Problem]:
    given = [("reward.scorer", recipe.reward.scorer)]
    given += [("dataset.parts", part.scorer) for part in recipe.dataset.parts if part.scorer is not None]
    for key, scorer in given:
        names = scorer_names(scorer)
        if not names or len(set(names)) < len(names):
            yield Problem((key,), "a list of scorers is not empty and has none twice", "name each once")
        for name in names:
            problem = name_problem(name)
            if problem is not None:
                yield Problem((key,), *problem)


def _prompt_and_scorer(recipe: Recipe) -> Iterator[Problem]:
    """A prompt that asks for one form of an answer, and a scorer that reads only the other."""
    template = recipe.prompt.template
    asked = [form for form in (ANSWER_LINE, BOX) if form.lower() in template.lower()]
    asked = {"dapo": [ANSWER_LINE], "boxed": [BOX]}.get(template, asked)
    parts = [part for part in recipe.dataset.parts if part.scorer is not None]
    given = [("dataset.parts", part.scorer, f" of {part.name}") for part in parts]
    if len(parts) < len(recipe.dataset.parts) or not recipe.dataset.parts:
        given.insert(0, ("reward.scorer", recipe.reward.scorer, ""))
    for key, scorer, whose in given:
        read = forms_read(scorer or ())
        if asked and read and not set(asked) & set(read):
            fitting = [name for name, forms in READS.items() if asked[0] in forms]
            yield Problem(
                (key, "prompt.template"),
                f"the prompt asks for {asked[0]} and the scorer{whose} reads only {read[0]}: every answer would be "
                "missed",
                f"use one of {', '.join(fitting)}, or another template",
            )


def _heldout_evaluation(recipe: Recipe) -> Iterator[Problem]:
    evaluation, dataset = recipe.eval, recipe.dataset
    runs = evaluation.before_training or evaluation.after_training or evaluation.every is not None
    numbers = [part.heldout_problems for part in dataset.parts] or [dataset.heldout_problems]
    if runs and evaluation.benchmark == "heldout" and all(number == 0 for number in numbers):
        yield Problem(
            ("dataset.heldout_problems", "eval.benchmark"),
            "eval.benchmark: heldout has no problems to evaluate when none are set apart",
            "set some apart, name another benchmark, or turn before_training, after_training and every off",
        )


DATASET_RULES: tuple[Rule, ...] = (
    _names,
    _one_or_several,
    _weights,
    _scorers,
    _prompt_and_scorer,
    _heldout_evaluation,
)

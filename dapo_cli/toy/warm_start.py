"""Supervised training of the toy model: first mostly worked answers, then those of the careless pupil.

The first phase teaches digit sums, the second the habits that reinforcement is to change. Single-threaded and of a
fixed number of updates, so that the result does not depend on the speed of the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

import torch

from dapo_cli.dataset.prompt_template import apply_template
from dapo_cli.reward.dapo_rule import score
from dapo_cli.toy.task import careless_answer, measured_problems, warm_start_split, worked_answer


class Settings(TypedDict):
    """What the warm-started weights depend on."""

    seed: int
    worked_updates: int
    careless_updates: int
    careless_share: float
    """Share of careless answers in the first phase, so that the second brings nothing unheard of."""
    answers_per_update: int
    learning_rate: float
    careless_learning_rate: float


SETTINGS = Settings(
    seed=0,
    worked_updates=680,
    careless_updates=120,
    careless_share=0.1,
    answers_per_update=32,
    learning_rate=6e-3,
    careless_learning_rate=6e-4,
)
TARGET_ACCURACY = (0.20, 0.45)
"""What the settings are tuned for, sampled as for training (top_p 1) and as the paper evaluates (top_p 0.7); other
processors round differently and land a few points away."""
MAX_RESPONSE_TOKENS = 32
SAMPLES_PER_PROBLEM = 4


def warm_start(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Train `model` in place and measure it; the record says on what, how, and with which result.

    Raises:
        VerificationError: training and held-out problems overlap.
    """
    problems = [row.problem for _, row in warm_start_split().train]
    with _one_thread():
        _train(model, tokenizer, problems)
        accuracy = {f"top_p {top_p}": sampled_accuracy(model, tokenizer, top_p) for top_p in (1.0, 0.7)}
    return {
        "settings": dict(SETTINGS),
        "training_problems": len(problems),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "heldout_accuracy": accuracy,
        "target_accuracy": list(TARGET_ACCURACY),
        "heldout_problems": len(measured_problems()),
        "samples_per_problem": SAMPLES_PER_PROBLEM,
        "temperature": 1.0,
        "max_response_tokens": MAX_RESPONSE_TOKENS,
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread: the same sums in the same order everywhere, and faster at this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(model: Any, tokenizer: Any, problems: Sequence[str]) -> None:
    prompts = tokenizer([prompt_text(tokenizer, problem) for problem in problems], add_special_tokens=False).input_ids
    prompt_ids = dict(zip(problems, prompts, strict=True))
    chance = random.Random(SETTINGS["seed"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    for update in range(SETTINGS["worked_updates"] + SETTINGS["careless_updates"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update)
        careless_share = SETTINGS["careless_share"] if update < SETTINGS["worked_updates"] else 1.0
        drawn = chance.choices(problems, k=SETTINGS["answers_per_update"])
        answers = [
            careless_answer(problem, chance) if chance.random() < careless_share else worked_answer(problem)
            for problem in drawn
        ]
        token_ids, labels = _batch(tokenizer, [prompt_ids[problem] for problem in drawn], answers)
        logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def learning_rate(update: int) -> float:
    """Linear warm-up over 50 updates, then linear decay to 2%; the careless phase decays linearly from its own rate.

    >>> learning_rate(0), learning_rate(340)
    (0.00012, 0.003)
    """
    worked, careless = SETTINGS["worked_updates"], SETTINGS["careless_updates"]
    if update >= worked:
        return SETTINGS["careless_learning_rate"] * (1 - (update - worked) / (careless + 1))
    return SETTINGS["learning_rate"] * min(1.0, (update + 1) / 50) * max(0.02, 1 - update / worked)


def prompt_text(tokenizer: Any, problem: str) -> str:
    """The problem in the DAPO template and the chat template, ready for the response."""
    message = {"role": "user", "content": apply_template("dapo", problem)}
    text: str = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return text


def _batch(tokenizer: Any, prompts: list[list[int]], answers: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both [answers, longest]; the loss is on the answer and the token that ends it."""
    endings = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(answers, add_special_tokens=False).input_ids]
    longest = max(len(prompt) + len(ending) for prompt, ending in zip(prompts, endings, strict=True))
    token_ids = torch.full((len(prompts), longest), tokenizer.pad_token_id)
    labels = torch.full((len(prompts), longest), -100)
    for row, (prompt, ending) in enumerate(zip(prompts, endings, strict=True)):
        token_ids[row, : len(prompt) + len(ending)] = torch.tensor([*prompt, *ending])
        labels[row, len(prompt) : len(prompt) + len(ending)] = torch.tensor(ending)
    return token_ids, labels


@torch.no_grad()
def sampled_accuracy(model: Any, tokenizer: Any, top_p: float) -> float:
    """Share of right answers on the held-out problems, `SAMPLES_PER_PROBLEM` each, temperature 1, DAPO scorer."""
    rows = [row for row in measured_problems() for _ in range(SAMPLES_PER_PROBLEM)]
    prompts = tokenizer(
        [prompt_text(tokenizer, row.problem) for row in rows],
        add_special_tokens=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SETTINGS["seed"])
        sampled = model.generate(
            **prompts, do_sample=True, temperature=1.0, top_k=0, top_p=top_p, max_new_tokens=MAX_RESPONSE_TOKENS
        )
    responses = tokenizer.batch_decode(sampled[:, prompts.input_ids.shape[1] :], skip_special_tokens=True)
    right = [score(response, row.answer).outcome == "right" for response, row in zip(responses, rows, strict=True)]
    return sum(right) / len(right)

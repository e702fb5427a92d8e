"""Supervised training of the toy decoder on a task's demonstrations, once per task and kept in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch

from dapo_cli.mechanisms.schema import Task
from dapo_cli.mechanisms.tasks import FORMAT_VERSION, BuiltTask, Demonstration, build_task
from dapo_cli.toy.model import new_toy_model
from dapo_cli.types import Problem

DEMONSTRATIONS_PER_UPDATE = 64
WARM_UP_UPDATES = 50


def warm_model(task: Task, root: Path) -> Path:
    """The folder `root`/<kind>-<hash> with the warm-started decoder of a task, made if it is not there yet."""
    settings = [FORMAT_VERSION, DEMONSTRATIONS_PER_UPDATE, task.model_dump()]
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    folder = root / f"{task.kind}-{digest}"
    if folder.is_dir():
        return folder
    model, tokenizer = new_toy_model(seed=0)
    torch.set_num_threads(1)
    train(model, tokenizer, build_task(task))
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    try:
        temporary.replace(folder)
    except OSError:
        if not folder.is_dir():  # else a twin made by another process meanwhile is as good
            raise
        shutil.rmtree(temporary)
    return folder


def train(model: Any, tokenizer: Any, task: BuiltTask) -> None:
    """Train `model` in place for `task.warm_updates` updates."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.warm_learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    prompts = {problem.text: tokenizer(problem.text).input_ids for problem in task.problems}
    model.train()
    for update in range(task.warm_updates):
        rate = task.warm_learning_rate * min(1.0, (update + 1) / WARM_UP_UPDATES) * (1 - update / task.warm_updates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        drawn = chance.choices(task.problems, k=DEMONSTRATIONS_PER_UPDATE)
        shown = [(problem, task.demonstrate(problem, chance, update / task.warm_updates)) for problem in drawn]
        token_ids, weights = _batch(tokenizer, prompts, shown)
        logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), token_ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / (weights > 0).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _batch(
    tokenizer: Any, prompts: dict[str, list[int]], shown: list[tuple[Problem, Demonstration]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss weights, both [demonstrations, longest]; prompts and padding weigh nothing."""
    responses = tokenizer([each.response for _, each in shown]).input_ids
    rows = [
        (prompts[problem.text], [*ids, tokenizer.eos_token_id], each.first_weight)
        for (problem, each), ids in zip(shown, responses, strict=True)
    ]
    longest = max(len(prompt) + len(response) for prompt, response, _ in rows)
    token_ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    weights = torch.zeros(len(rows), longest)
    for row, (prompt, response, first_weight) in enumerate(rows):
        start, end = len(prompt), len(prompt) + len(response)
        token_ids[row, :end] = torch.tensor([*prompt, *response])
        weights[row, start:end] = 1.0
        weights[row, start] = first_weight
    return token_ids, weights

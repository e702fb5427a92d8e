"""`dapo infer`: sample, show, and keep what was sampled."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from dapo_cli.backend.local import pick_device
from dapo_cli.errors import DapoError
from dapo_cli.evaluation.command import describe_sampling
from dapo_cli.inference.engine import Stream, choose_engine, open_stream
from dapo_cli.inference.options import InferenceOptions, check_options
from dapo_cli.inference.response import Judged, LiveResponse, judge, record
from dapo_cli.inference.responses_file import Key, ResponsesFile, take_up
from dapo_cli.inference.screen import LinesScreen, Screen, StreamedScreen
from dapo_cli.inference.setup import Setup, open_setup
from dapo_cli.rollout.seeds import rollout_seed
from dapo_cli.rollout.streaming import TextStream
from dapo_cli.run.files import Note
from dapo_cli.run.signals import StopRequested, StopSignals
from dapo_cli.types import FinishReason, RolloutRequest

FOLDER = Path("runs") / "_inference"


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """What came out of one call."""

    responses: tuple[dict[str, Any], ...]
    """Records of the responses that ended, in the order of problems and samples, those that were in the file too."""
    asked: int
    out: Path | None
    interrupted: bool


def run_inference(
    options: InferenceOptions, note: Note, out: TextIO | None = None, stdin: TextIO | None = None
) -> InferenceResult:
    """Sample what `options` ask for and show it on `out`, standard output by default.

    Ctrl-C or SIGTERM ends the sampling at the next token: what was sampled is shown, and `interrupted` is set.

    Raises:
        UsageError: options that exclude each other; a recipe, model, problem or file that cannot be had; an output
            file with responses of other settings.
    """
    check_options(options)
    out = out or sys.stdout
    setup = open_setup(options, stdin or sys.stdin, note)
    device = pick_device(setup.recipe.backend)
    kind = choose_engine(setup.recipe, device.type)
    path = options.out or (None if options.file is None else default_out(options.file, setup.subject.name))
    about = _about(setup)
    live = _responses(setup, options)
    wanted = {_key(response): _depends_on(response, about) for response in live}
    done = {} if path is None else take_up(path, wanted)
    note(f"{setup.subject.name} on {device.type} with the {kind} engine, {setup.recipe.model.dtype}")
    note(describe_sampling(setup.sampling) + f"; seed {options.seed}")
    missing = [response for response in live if _key(response) not in done]
    if done:
        note(f"{path}: {len(done)} of {len(live)} responses are there already")
    screen: Screen = StreamedScreen(setup, options.samples, out)
    if options.file is not None:
        screen = LinesScreen(len(done), len(live), out)
    interrupted = False
    if missing:
        with open_stream(setup, kind, device, note) as stream, _keeping(path) as keep:

            def ended(response: LiveResponse, judged: Judged) -> None:
                done[_key(response)] = record(response, judged, about)
                keep(done[_key(response)])

            interrupted = _sample(stream, missing, setup, screen, ended)
    in_order = tuple(done[_key(response)] for response in live if _key(response) in done)
    return InferenceResult(in_order, len(live), path, interrupted)


def default_out(file: Path, model: str) -> Path:
    """Where the responses to a file of problems go: named after the file and the weights.

    >>> str(default_out(Path("data/sums.jsonl"), "models/toy#1f2e"))
    'runs/_inference/sums_models_toy_1f2e.jsonl'
    """
    safe = re.sub(r"[^\w.-]+", "_", model).strip("_")
    return FOLDER / f"{file.stem}_{safe}.jsonl"


def _about(setup: Setup) -> dict[str, Any]:
    return {
        "model": setup.subject.name,
        "template": setup.recipe.prompt.template,
        "scorer": setup.recipe.reward.scorer,
        "sampling": asdict(setup.sampling),
    }


def _key(response: LiveResponse) -> Key:
    return response.prompt.problem.problem_id, response.sample


def _depends_on(response: LiveResponse, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": response.prompt.text, "gold": response.gold, "seed": response.seed, **about}


def _responses(setup: Setup, options: InferenceOptions) -> list[LiveResponse]:
    """Every response that is wanted; its seed depends on --seed, the problem and the sample alone."""
    return [
        LiveResponse(
            prompt,
            sample,
            rollout_seed("inference", options.seed, prompt.problem.problem_id, sample),
            TextStream(setup.tokenizer, setup.sampling),
        )
        for prompt in setup.prompts
        for sample in range(options.samples)
    ]


@contextmanager
def _keeping(path: Path | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    with ExitStack() as stack:
        yield (lambda record: None) if path is None else stack.enter_context(ResponsesFile(path)).append


def _sample(
    stream: Stream,
    missing: Sequence[LiveResponse],
    setup: Setup,
    screen: Screen,
    ended: Callable[[LiveResponse, Judged], None],
) -> bool:
    """Sample the missing responses; returns whether that was interrupted."""
    requests = _requests(missing, setup)
    by_key = {
        (request.index, seed): response for response, (request, seed) in zip(missing, _flat(requests), strict=True)
    }
    screen.expect(missing)
    started = time.perf_counter()
    signals = StopSignals(announce=lambda text: None)

    def hear(index: int, seed: int, ids: Sequence[int], finish_reason: FinishReason | None) -> None:
        response = by_key[index, seed]
        response.add(ids, finish_reason, time.perf_counter() - started)
        screen.heard(response)
        if finish_reason is not None:
            judged = judge(response, setup.recipe.reward)
            ended(response, judged)
            screen.ended(response, judged)
        signals.raise_if_requested()

    with signals:
        try:
            stream(requests, hear)
        except StopRequested:
            for response in missing:
                if response.finish_reason is None and response.tokens:
                    screen.ended(response, judge(response, setup.recipe.reward))
    unfinished = sum(response.finish_reason is None for response in missing)
    if unfinished and not signals.requested:
        raise DapoError(f"dapo infer: the engine ended with {unfinished} of {len(missing)} responses unfinished")
    return unfinished > 0


def _requests(missing: Sequence[LiveResponse], setup: Setup) -> list[RolloutRequest]:
    """One request per problem, with the seeds of its missing samples."""
    seeds: dict[int, list[int]] = {}
    for response in missing:
        seeds.setdefault(id(response.prompt), []).append(response.seed)
    return [
        RolloutRequest(index, prompt.problem, prompt.prompt_ids, setup.sampling, tuple(seeds[id(prompt)]))
        for index, prompt in enumerate(setup.prompts)
        if id(prompt) in seeds
    ]


def _flat(requests: Sequence[RolloutRequest]) -> Iterator[tuple[RolloutRequest, int]]:
    return ((request, seed) for request in requests for seed in request.seeds)

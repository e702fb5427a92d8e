"""`dapo eval --endpoint`: the benchmark of a recipe for a served model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from dapo_cli.errors import UsageError
from dapo_cli.evaluation.command import open_plan
from dapo_cli.evaluation.endpoint import Endpoint, Server
from dapo_cli.evaluation.endpoint_request import RequestTokenizer
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.evaluation.plan import EvaluationPlan, with_card_values
from dapo_cli.evaluation.result import EvaluationResult
from dapo_cli.recipe.loading import LoadedRecipe
from dapo_cli.run.files import Note

_ANY_LENGTH = 2**31


def evaluate_endpoint(
    loaded: LoadedRecipe,
    endpoint: Endpoint,
    out: Path | None,
    note: Note,
    progress: Callable[[int, int], None],
) -> tuple[EvaluationResult, Path]:
    """Evaluate what `endpoint` serves by the recipe; returns the result and the folder it is in.

    The recipe gives benchmark, prompt and scorer; its model is not read. The folder is named by the model and the URL:
    an endpoint does not say which weights it serves.

    Raises:
        UsageError: the endpoint does not take the prompt or the sampling; or see `Endpoint.server`.
        DapoError: the endpoint is down for too long; what arrived is in the folder.
    """
    loaded = with_card_values(loaded)
    server = endpoint.server()
    plan = plan_for(loaded, server, note)
    name = f"{server.model}@{endpoint.url}"
    settings = plan.settings(name)
    note(f"evaluating {name} on {settings.benchmark}: {len(plan.prompts)} problems x {settings.samples} samples")
    note(endpoint.describe(settings.sampling))
    safe = re.sub(r"[^\w.-]+", "_", name).strip("_")
    folder = out or Path("runs") / "_evals" / f"{loaded.name}_{Path(loaded.recipe.eval.benchmark).stem}_{safe}"
    return evaluate(endpoint.respond, plan.problems, settings, plan.reward, folder, progress), folder


def plan_for(loaded: LoadedRecipe, server: Server, note: Note) -> EvaluationPlan:
    """The recipe's benchmark as requests. Token ids of prompts are not known here, so only the server can find one too
    long; a response ends at the end tokens the server knows, and at those the recipe names.

    Raises:
        UsageError: the prompt section has what a server cannot be given, or the longest response is too long for it.
    """
    prompt, limit = loaded.recipe.prompt, loaded.recipe.eval.max_response_tokens
    if prompt.chat_template is not None:
        hint = "dapo serve --chat-template FILE, and --set prompt.chat_template=null here"
        raise UsageError("prompt.chat_template: an endpoint applies the chat template of its own", hint=hint)
    if prompt.template_arguments and server.fields != "vllm":
        raise UsageError("prompt.template_arguments: only vLLM and SGLang take arguments of the chat template")
    if server.longest_tokens is not None and limit is not None and limit >= server.longest_tokens:
        what = (
            f"a response of {limit} tokens does not fit the {server.longest_tokens} that {server.model} is served for"
        )
        raise UsageError(
            f"eval.max_response_tokens: {what}", hint="serve it for more, or lower eval.max_response_tokens"
        )
    unlimited = prompt.model_copy(update={"max_prompt_tokens": _ANY_LENGTH})
    loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"prompt": unlimited}))
    unknown_model = (SimpleNamespace(max_position_embeddings=None), SimpleNamespace(eos_token_id=[]))
    return open_plan(loaded, RequestTokenizer(), unknown_model, note)

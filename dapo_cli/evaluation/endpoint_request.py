"""What is sent to an endpoint that speaks OpenAI's API, and what its answers mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.endpoint_http import Broken, Unavailable
from dapo_cli.evaluation.evaluate import Question, Response
from dapo_cli.types import FinishReason, Message, Sampling

Fields = Literal["vllm", "openai"]
"""vllm: OpenAI's fields and the extra ones of vLLM and SGLang. openai: OpenAI's alone."""
_NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "stop_token_ids": []}
"""The fields that OpenAI's API does not have, at the values that change nothing."""
_LARGEST_SEED = 2**63 - 1


class RequestTokenizer:
    """Stands where a renderer wants the model's tokenizer: a prompt's ids are the bytes of the request it makes.

    The server applies the chat template, and nobody here has to have the tokenizer of the model it serves.
    """

    chat_template = "the server's"

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None,
        tokenize: Literal[False],
        add_generation_prompt: Literal[True],
        **template_arguments: Any,
    ) -> str:
        """The conversation as JSON; a chat template of one's own is refused before anything is rendered."""
        assert chat_template is None
        fields: dict[str, Any] = {"messages": list(messages)}
        if template_arguments:
            fields["chat_template_kwargs"] = template_arguments
        return json.dumps(fields)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> SimpleNamespace:
        """Bytes of the request: of a rendered conversation as it is, of a plain text as its `prompt`."""
        request = json.dumps({"prompt": text}) if add_special_tokens else text
        return SimpleNamespace(input_ids=list(request.encode()))


def request_body(question: Question, model: str, fields: Fields, limit_field: str) -> dict[str, Any]:
    """The whole request of one question, every sampling field stated; `limit_field` bears the longest response."""
    prompt = json.loads(question.prompt_ids.astype(np.uint8).tobytes())
    body = {"model": model, **prompt, **sampling_fields(question.sampling, fields, limit_field)}
    return {**body, "seed": question.seed & _LARGEST_SEED, "n": 1, "stream": False}


def sampling_fields(sampling: Sampling, fields: Fields, limit_field: str) -> dict[str, Any]:
    """Every sampling field that a server of this kind knows.

    Raises:
        UsageError: OpenAI's own API, and a value other than the neutral one for a field that it does not have.
    """
    sent: dict[str, Any] = {
        limit_field: sampling.max_response_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.stop_strings:
        sent["stop"] = list(sampling.stop_strings)
    extra = {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if fields == "vllm":
        return sent | extra
    odd = [f"{name} {value}" for name, value in extra.items() if value != _NEUTRAL[name]]
    if odd:
        what = f"sampling: {', '.join(odd)}: OpenAI's API has no such field"
        raise UsageError(what, hint="serve the model with vLLM (`dapo serve`), or leave them at their neutral values")
    return sent


def describe_fields(sampling: Sampling, fields: Fields, limit_field: str) -> str:
    """What is sent and what is not, on one line.

    Raises:
        UsageError: see `sampling_fields`.
    """
    sent = sampling_fields(sampling, fields, limit_field)
    shown = ", ".join(f"{name} {value}" for name, value in sent.items())
    absent = [name for name in _NEUTRAL if name not in sent]
    left = f"; not sent, so the server's own: {', '.join(absent)}" if absent else ""
    end = "" if sent.get("stop_token_ids") else "; a response ends at the end tokens the server knows"
    return f"sent: {shown}, a seed for each response{left}{end}"


def read_response(reply: Any, question: Question, note: Callable[[str], None]) -> Response:
    """The response in an answer of /chat/completions or /completions; an empty text is one too.

    Raises:
        Unavailable: the server was stopped while it sampled.
        Broken: the answer has not the form of OpenAI's API.
        DapoError: the server does not keep to the longest response.
    """
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        reason = choice["finish_reason"]
        tokens = (reply.get("usage") or {}).get("completion_tokens")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Broken(f"not an answer in OpenAI's form: {json.dumps(reply)[:300]}") from error
    if not isinstance(text, str | None) or not isinstance(tokens, int | None):
        raise Broken(f"not an answer in OpenAI's form: {json.dumps(reply)[:300]}")
    limit = question.sampling.max_response_tokens
    if tokens is not None and tokens > limit:
        raise DapoError(f"the server sampled {tokens} tokens where {limit} were the limit: it ignores the limit")
    return Response(question.index, question.sample, text or "", tokens, _finish_reason(reason, question, note))


def _finish_reason(reason: Any, question: Question, note: Callable[[str], None]) -> FinishReason | None:
    if reason in ("stop", "length"):
        return "length" if reason == "length" else "stop"
    if reason == "abort":
        raise Unavailable("the server gave the request up (finish_reason abort)")
    if reason in (None, "error"):
        raise Broken(f"the response did not finish (finish_reason {reason})")
    note(f"problem {question.problem.problem_id} sample {question.sample}: finish_reason {reason!r}, recorded as null")
    return None


def model_cards(reply: Any) -> dict[str, Mapping[str, Any]]:
    """The models of an answer of /models, by name.

    Raises:
        Broken: it is none.
    """
    try:
        return {str(card["id"]): card for card in reply["data"]}
    except (KeyError, TypeError) as error:
        raise Broken(f"not a list of models in OpenAI's form: {json.dumps(reply)[:300]}") from error

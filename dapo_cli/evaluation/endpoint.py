"""A served model that speaks OpenAI's API, as something that answers questions."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dapo_cli.errors import DapoError, UsageError
from dapo_cli.evaluation.endpoint_http import Broken, Refused, Unavailable, fetch_json
from dapo_cli.evaluation.endpoint_request import (
    Fields,
    describe_fields,
    model_cards,
    read_response,
    request_body,
    sampling_fields,
)
from dapo_cli.evaluation.evaluate import Question, Response
from dapo_cli.types import Sampling

_T = TypeVar("_T")
_TRIES = 6
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 60.0
_SECONDS_BETWEEN_NOTES = 60.0
_OWN_FIELDS = ("vllm", "sglang")
"""Who says in /models that it serves a model, and takes vLLM's extra fields."""


@dataclass(frozen=True, slots=True)
class Server:
    """What an endpoint says of itself."""

    model: str
    fields: Fields
    longest_tokens: int | None
    """Prompt and response together; None where it does not say."""


@dataclass(slots=True)
class Patience:
    """How long an endpoint that gives no answer is waited for, whoever asks."""

    url: str
    wait_seconds: float
    note: Callable[[str], None]
    first_delay_seconds: float = _FIRST_DELAY_SECONDS
    _since: float | None = None
    _noted: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self) -> None:
        """Some request was answered."""
        self._since = None

    def delay(self, failure: Unavailable | Broken, tries: int) -> float:
        """Seconds until the next try, after `tries` of the same request: exponential with jitter, or as asked for.

        Raises:
            DapoError: nothing was answered for `wait_seconds`.
        """
        with self._lock:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            left = self._since + self.wait_seconds - now
            if left <= 0:
                what = f"{self.url}: no answer for {self.wait_seconds:g} s: {failure}"
                raise DapoError(what, hint="what arrived is kept: the same command goes on where it was")
            if now - self._noted >= _SECONDS_BETWEEN_NOTES:
                self._noted = now
                self.note(f"{self.url}: {failure}; trying again, for up to {left:.0f} s without any answer")
        exponential = min(self.first_delay_seconds * 2.0 ** min(tries - 1, 10), _LONGEST_DELAY_SECONDS)
        asked = failure.retry_after_seconds if isinstance(failure, Unavailable) else None
        wanted = exponential * random.uniform(0.5, 1.0) if asked is None else asked * random.uniform(1.0, 1.1)
        return min(wanted, left)


class Endpoint:
    """An endpoint's chat and completions routes. `model` may be None where only one is served.

    Up to `concurrency` requests are under way. A server that is down or busy is tried again until it has answered
    nothing for `wait_seconds`; one that fails at a request itself gets six tries at it. `timeout_seconds` is how long
    one response may take.

    Raises:
        UsageError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        concurrency: int = 64,
        timeouts: tuple[float, float] = (600.0, 3600.0),
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.url = base_url(url)
        self.wait_seconds, self.timeout_seconds = timeouts
        self.patience = Patience(self.url, self.wait_seconds, note)
        # OpenAI's newest models take no other name for it, and many servers know only the old one.
        official = f".{urlsplit(self.url).hostname}".endswith(".openai.com")
        self.limit_field = "max_completion_tokens" if official else "max_tokens"
        self._wanted, self._api_key, self._concurrency, self._note = model, api_key, concurrency, note
        self._server: Server | None = None

    def server(self) -> Server:
        """The model that is asked, and what the server is; asked for once.

        Raises:
            UsageError: the server has no such model, several and none was named, or refuses the key.
            DapoError: it is down.
        """
        if self._server is None:
            self._server = self._find_server()
        return self._server

    def describe(self, sampling: Sampling) -> str:
        """What is sent and what is not.

        Raises:
            UsageError: a field that the server does not know has a value that matters; or see `server`.
        """
        return describe_fields(sampling, self.server().fields, self.limit_field)

    def respond(self, questions: Sequence[Question]) -> Iterator[Response]:
        """The responses, in the order of arrival.

        Raises:
            UsageError: the server refuses a question, with the server's words.
            DapoError: it is down for too long, or fails at a question again and again.
        """
        if not questions:
            return
        server = self.server()
        sampling_fields(questions[0].sampling, server.fields, self.limit_field)
        arrived: queue.SimpleQueue[Response | Exception] = queue.SimpleQueue()
        waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
        for question in questions:
            waiting.put(question)
        stop = threading.Event()
        for _ in range(min(self._concurrency, len(questions))):
            # A request under way must not hold up the end of the process.
            threading.Thread(target=self._work, args=(waiting, arrived, stop), daemon=True).start()
        try:
            for _ in questions:
                response = arrived.get()
                if isinstance(response, Exception):
                    raise response
                yield response
        finally:
            stop.set()

    def _work(
        self,
        waiting: queue.SimpleQueue[Question],
        arrived: queue.SimpleQueue[Response | Exception],
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                question = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                arrived.put(self._answer(question, stop))
            except Exception as error:
                arrived.put(error)
                return

    def _answer(self, question: Question, stop: threading.Event) -> Response:
        server = self.server()
        body = request_body(question, server.model, server.fields, self.limit_field)
        route = "chat/completions" if "messages" in body else "completions"
        what = f"problem {question.problem.problem_id} sample {question.sample}"
        try:
            return self._until_answered(
                lambda: read_response(self._fetch(route, body), question, self._note), what, stop.wait
            )
        except Refused as error:
            raise self._refusal(error, what) from error

    def _fetch(self, route: str, body: Any = None) -> Any:
        return fetch_json(f"{self.url}/{route}", body, self._api_key, self.timeout_seconds)

    def _until_answered(self, fetch: Callable[[], _T], what: str, pause: Callable[[float], Any]) -> _T:
        tries = broken = 0
        while True:
            tries += 1
            try:
                answer = fetch()
            except (Unavailable, Broken) as error:
                broken += isinstance(error, Broken)
                if broken == _TRIES:
                    raise DapoError(f"{self.url}: {what}: {_TRIES} tries, the last: {error}") from error
                if pause(self.patience.delay(error, tries)):
                    raise DapoError(f"{self.url}: {what}: given up") from error
            else:
                self.patience.answered()
                return answer

    def _find_server(self) -> Server:
        try:
            cards = self._until_answered(lambda: model_cards(self._fetch("models")), "the list of models", time.sleep)
        except Refused as error:
            if error.status not in (404, 405) or self._wanted is None:
                raise self._refusal(error, "the list of models") from error
            self._note(f"{self.url}: lists no models ({error}); {self._wanted} is taken at its word")
            return Server(self._wanted, "openai", None)
        names = ", ".join(sorted(cards)) or "none"
        if self._wanted is None and len(cards) != 1:
            raise UsageError(f"{self.url}: which model? It serves: {names}", hint="--served-model NAME")
        model = self._wanted if self._wanted is not None else next(iter(cards))
        if model not in cards:
            raise UsageError(f"{self.url}: no model {model}; it serves: {names}", hint="--served-model NAME")
        card = cards[model]
        longest = card.get("max_model_len")
        fields: Fields = "vllm" if card.get("owned_by") in _OWN_FIELDS else "openai"
        return Server(model, fields, longest if isinstance(longest, int) else None)

    def _refusal(self, error: Refused, what: str) -> UsageError:
        """One line for what the server refuses, with its own words."""
        if error.status in (401, 403):
            return UsageError(f"{self.url}: {error}", hint="dapo eval sends the key in OPENAI_API_KEY, if it is set")
        if error.status == 404:
            hint = "is the URL that of an API like OpenAI's, as http://host:8000/v1? Which models it serves: "
            return UsageError(f"{self.url}: {what}: {error}", hint=hint + self._models_now())
        return UsageError(f"{self.url}: {what}: the server refuses the request: {error}")

    def _models_now(self) -> str:
        try:
            return ", ".join(sorted(model_cards(self._fetch("models")))) or "none"
        except (Unavailable, Broken, Refused) as error:
            return f"it does not say ({error})"


def base_url(url: str) -> str:
    """The URL that routes such as /chat/completions are added to; without a path it is /v1.

    >>> base_url("http://localhost:8000"), base_url("https://host/v1/chat/completions")
    ('http://localhost:8000/v1', 'https://host/v1')

    Raises:
        UsageError: not an http or https URL.
    """
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"--endpoint {url}: not a URL of the form http://host:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"

"""JSON over HTTP, with failures sorted by what helps: waiting, trying again, or nothing."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from dapo_cli.errors import UsageError

_SHOWN_CHARACTERS = 300
_BUSY_OR_DOWN = (429, 502, 503)


class Unavailable(Exception):
    """Nobody answers, or the server asks to come back later; nothing is wrong with the request."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Broken(Exception):
    """The server answered this request with an error of its own, not in time, or not in JSON: another try may do."""


class Refused(Exception):
    """The server does not take this request, and would not take it again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def fetch_json(url: str, body: Any, api_key: str | None, timeout_seconds: float) -> Any:
    """The JSON that `url` answers: to a POST of `body`, or to a GET where that is None.

    `timeout_seconds` is how long the server may be silent. Proxies are those of the environment.

    Raises:
        Unavailable, Broken, Refused: as their names say.
        UsageError: the server's certificate is not trusted.
    """
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, headers), timeout=timeout_seconds) as reply:
            text = reply.read()
    except HTTPError as error:
        raise _of_status(error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _of_connection(url, error, timeout_seconds) from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise Broken(f"the answer is not JSON: {_shown(text)!r}") from error


def _of_status(error: HTTPError) -> Exception:
    try:
        text = error.read()
    except (OSError, http.client.HTTPException):
        text = b""
    message = f"HTTP {error.code}: {_server_message(text) or error.reason}"
    if error.code in _BUSY_OR_DOWN:
        return Unavailable(message, retry_after_seconds(error.headers.get("Retry-After"), datetime.now(UTC)))
    return Broken(message) if error.code >= 500 or error.code == 408 else Refused(error.code, message)


def _of_connection(url: str, error: OSError | http.client.HTTPException, timeout_seconds: float) -> Exception:
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, TimeoutError):
        return Broken(f"no answer within {timeout_seconds:g} s")
    if isinstance(reason, ssl.SSLCertVerificationError):
        hint = "SSL_CERT_FILE names a file of authorities to trust"
        return UsageError(f"{url}: its certificate is not trusted: {reason.verify_message}", hint=hint)
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return Unavailable(words or type(reason).__name__)


def _server_message(text: bytes) -> str:
    """What the server says, in the forms of OpenAI, vLLM and FastAPI; else the text itself."""
    try:
        found = json.loads(text)
    except ValueError:
        return _shown(text)
    if isinstance(found, dict):
        inner = found.get("error", found)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner
        return inner if isinstance(inner, str) else json.dumps(inner)
    return _shown(text)


def _shown(text: bytes) -> str:
    return " ".join(text[:_SHOWN_CHARACTERS].decode(errors="replace").split())


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """The header Retry-After, in seconds or as a date; None where it is absent or neither.

    >>> retry_after_seconds("7", datetime(2026, 1, 1, tzinfo=UTC))
    7.0
    >>> retry_after_seconds("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(value) - now).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None

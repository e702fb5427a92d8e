"""What a failure of the model hub, its cache or the way to it means, in one line with what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from dapo_cli.errors import UsageError

_LOCAL_ALTERNATIVE = {
    "dataset": "give a local file or folder with --source",
    "model": "name a local folder in model.path",
}


def hub_error(error: BaseException, what: str, repo_id: str, revision: str | None) -> UsageError:
    """A failed download of a `what` (dataset, model) as one line that says what to do.

    What transformers wraps is found by its cause; what is nothing of the hub's keeps its first line.
    """
    where = f"{what} {repo_id}" + (f" at revision {revision}" if revision else "")
    found = _explain(error, what, repo_id)
    if found is None:
        return UsageError(f"{where}: cannot be loaded: {_first_line(error)}")
    problem, remedy = found
    return UsageError(f"{where}: {problem}", hint=f"{remedy}; or {_LOCAL_ALTERNATIVE[what]}")


def is_hub_failure(error: BaseException) -> bool:
    """Whether an error came from asking the hub or its cache, and not from what was loaded."""
    return _explain(error, "model", "") is not None


def _explain(error: BaseException, what: str, repo_id: str) -> tuple[str, str] | None:
    """(what is wrong, what to do), None where it is nothing of the hub's."""
    from huggingface_hub import constants

    causes = list(_chain(error))
    explanations: tuple[Callable[[BaseException], tuple[str, str] | None], ...] = (
        lambda cause: _refusal(cause, what, repo_id),
        _disk_trouble,
        _offline,
    )
    for explain in explanations:
        for cause in causes:
            if (found := explain(cause)) is not None:
                return found
    reasons = [cause for cause in causes if _is_transport(cause)]
    if not reasons and not any(_is_of_the_cache(cause) for cause in causes):
        return None
    reason = f" ({_first_line(reasons[-1])})" if reasons else ""
    return (
        f"{constants.ENDPOINT} cannot be reached{reason}, and the cache does not have all of it",
        "check the network and HTTPS_PROXY, or set HF_ENDPOINT to a mirror, with http:// or https://; the cache is "
        f"{constants.HF_HUB_CACHE} (HF_HOME)",
    )


def _refusal(cause: BaseException, what: str, repo_id: str) -> tuple[str, str] | None:
    """What the hub answered."""
    from huggingface_hub import constants, errors

    status = getattr(getattr(cause, "response", None), "status_code", None)
    headers = getattr(getattr(cause, "response", None), "headers", {})
    if isinstance(cause, errors.HFValidationError):
        return f"not a hub id: {_first_line(cause)}", "a hub id is ORG/NAME"
    if isinstance(cause, errors.DisabledRepoError):
        return f"disabled on {constants.ENDPOINT}", "take another"
    if isinstance(cause, errors.GatedRepoError) or status == 403:
        page = f"{constants.ENDPOINT}/{'datasets/' if what == 'dataset' else ''}{repo_id}"
        return (
            f"gated or private (HTTP {status})",
            f"accept its terms at {page}, then `hf auth login` or set HF_TOKEN, with a token that may read it",
        )
    if isinstance(cause, errors.RevisionNotFoundError):
        return "there is no such revision", "leave the revision out for the newest"
    if status == 401 and "invalid" in headers.get("X-Error-Message", "").lower():
        return f"{constants.ENDPOINT} refuses the token", "`hf auth login` again, or set HF_TOKEN to a valid one"
    if isinstance(cause, errors.RepositoryNotFoundError) or status == 401:
        return (
            f"not found on {constants.ENDPOINT}, or private (HTTP {status})",
            "check its name; a private one needs `hf auth login` or HF_TOKEN",
        )
    if status == 429:
        return f"{constants.ENDPOINT} answers: too many requests", "wait, or set HF_TOKEN, which may ask more often"
    if isinstance(cause, errors.EntryNotFoundError) or status is None:
        return None
    return f"{constants.ENDPOINT} answers HTTP {status}", "try again later, or set HF_ENDPOINT to a mirror"


def _offline(cause: BaseException) -> tuple[str, str] | None:
    from huggingface_hub import constants, errors

    if isinstance(cause, errors.OfflineModeIsEnabled) or (constants.HF_HUB_OFFLINE and _is_of_the_cache(cause)):
        return (
            "the cache does not have all of it, and HF_HUB_OFFLINE forbids asking the hub",
            f"unset HF_HUB_OFFLINE once; the cache is {constants.HF_HUB_CACHE} (HF_HOME)",
        )
    return None


def _disk_trouble(cause: BaseException) -> tuple[str, str] | None:
    from huggingface_hub import constants

    number = cause.errno if isinstance(cause, OSError) else None
    # The Rust downloader says it in words alone.
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(cause):
        return f"the disk of {constants.HF_HUB_CACHE} is full", "make room, or set HF_HOME to another disk"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the cache cannot be written: {_first_line(cause)}", "set HF_HOME to a folder of yours"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_of_the_cache(error: BaseException) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError | errors.RevisionResolutionError)


def _is_transport(error: BaseException) -> bool:
    """A request that got no answer, by whichever HTTP library huggingface_hub is built on."""
    return any(kind.__name__ in ("TransportError", "InvalidURL") for kind in type(error).__mro__) or isinstance(
        error, ConnectionError | TimeoutError
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

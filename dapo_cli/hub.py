"""The model hub: files of dataset repositories, and what its failures mean in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from dapo_cli.errors import UsageError

_SHOWN_FILES = 10


@dataclass(frozen=True, slots=True)
class Fetched:
    """Files of a dataset repository, in the local cache."""

    folder: Path
    files: tuple[Path, ...]
    commit: str
    """40 hex digits."""


def fetch_dataset_files(repo_id: str, revision: str | None, patterns: tuple[str, ...]) -> Fetched:
    """Download the files of a dataset repository that match, or take them from the cache.

    HF_ENDPOINT (a mirror), HF_HOME (the cache), HF_TOKEN and HF_HUB_OFFLINE are huggingface_hub's and are honoured.

    Raises:
        UsageError: they cannot be had, in one line with what to do; or no file matches.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder = Path(
            snapshot_download(
                repo_id, repo_type="dataset", revision=revision, allow_patterns=[_flat(pattern) for pattern in patterns]
            )
        )
    except (
        Exception
    ) as error:  # no network, no such repository, a full disk, a proxy: what it raises has no common kind
        raise hub_error(error, "dataset", repo_id, revision) from error
    # The snapshot may hold other files from an earlier call.
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    files = tuple(path for name, path in sorted(names.items()) if any(fnmatch(name, _flat(p)) for p in patterns))
    if not files:
        raise UsageError(
            f"{repo_id}: no file matches {', '.join(patterns)}{_listing(repo_id, revision)}", hint="see dataset.files"
        )
    return Fetched(folder, files, folder.name)


def _flat(pattern: str) -> str:
    """The hub's patterns match across folders: **/*.parquet is its *.parquet."""
    return pattern.replace("**/", "*")


def _listing(repo_id: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        names = sorted(HfApi().list_repo_files(repo_id, repo_type="dataset", revision=revision))
    except Exception:  # the listing is a help, and there may be no network any more
        return ""
    shown = ", ".join(names[:_SHOWN_FILES])
    return f"; it holds {shown}" + (f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else "")


def hub_error(error: BaseException, what: str, repo_id: str, revision: str | None) -> UsageError:
    """A failed download of a `what` (dataset, model) as one line that says what to do.

    What transformers wraps is found by its cause; what is nothing of the hub's keeps its first line.
    """
    from huggingface_hub import constants, errors

    where = f"{what} {repo_id}" + (f" at revision {revision}" if revision else "")
    local = "give a local file or folder with --source" if what == "dataset" else "name a local folder in model.path"
    cache = f"the cache is {constants.HF_HUB_CACHE}"
    for cause in _chain(error):
        if isinstance(cause, errors.GatedRepoError) or _status(cause) == 403:
            page = f"{constants.ENDPOINT}/{'datasets/' if what == 'dataset' else ''}{repo_id}"
            return UsageError(
                f"{where}: gated: its terms have to be accepted first",
                hint=f"accept them at {page}, then `hf auth login` or set HF_TOKEN",
            )
        if isinstance(cause, errors.RevisionNotFoundError):
            return UsageError(f"{where}: there is no such revision", hint="leave the revision out for the newest")
        if isinstance(cause, errors.RepositoryNotFoundError) or _status(cause) == 401:
            return UsageError(
                f"{where}: not found on {constants.ENDPOINT}, or private",
                hint=f"check its name; for a private one `hf auth login` or set HF_TOKEN; or {local}",
            )
        if isinstance(cause, errors.OfflineModeIsEnabled) or (constants.HF_HUB_OFFLINE and _of_the_cache(cause)):
            return UsageError(
                f"{where}: not in the cache, and HF_HUB_OFFLINE is set",
                hint=f"unset it, or {local}; {cache}",
            )
        if isinstance(cause, OSError) and cause.errno == 28:
            return UsageError(f"{where}: the disk is full", hint=f"{cache}; HF_HOME names another")
    if any(_no_connection(cause) for cause in _chain(error)):
        return UsageError(
            f"{where}: {constants.ENDPOINT} cannot be reached, and it is not in the cache",
            hint=f"HF_ENDPOINT names a mirror; or {local}; {cache}",
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UsageError(f"{where}: cannot be loaded: {lines[0]}", hint=f"or {local}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _of_the_cache(error: BaseException) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError | errors.RevisionResolutionError | errors.CacheNotFound)


def _no_connection(error: BaseException) -> bool:
    import httpx

    return isinstance(error, httpx.TransportError | ConnectionError | TimeoutError) or _of_the_cache(error)

"""The model hub: files of datasets and models at one commit, from the cache where it has them, in bounded time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any, Literal

from dapo_cli.errors import UsageError
from dapo_cli.hub_failure import hub_error

Kind = Literal["dataset", "model"]

_SHOWN_FILES = 10
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """Files of a dataset repository, in the local cache."""

    folder: Path
    files: tuple[Path, ...]
    commit: str
    """40 hex digits."""


def fetch_dataset_files(repo_id: str, revision: str | None, patterns: tuple[str, ...]) -> Fetched:
    """Download the files of a dataset repository that match, or take them from the cache.

    Patterns are those of `Path.glob`: * stays within a folder, ** is any depth. HF_ENDPOINT (a mirror), HF_HOME (the
    cache), HF_TOKEN and HF_HUB_OFFLINE are huggingface_hub's and are honoured.

    Raises:
        UsageError: they cannot be had, in one line with what to do; or no file matches.
    """
    try:
        commit = _commit(repo_id, "dataset", revision)
        names = _file_names(repo_id, commit)
        wanted = [name for name in names if any(_matches(name.split("/"), pattern.split("/")) for pattern in patterns)]
        if wanted:
            folder = _snapshot(repo_id, "dataset", commit, [escape(name) for name in wanted])
            return Fetched(folder, tuple(folder / name for name in wanted), commit)
    except UsageError:
        raise
    except Exception as error:  # no network, no such repository, a full disk, a proxy: they have no common kind
        raise hub_error(error, "dataset", repo_id, revision) from error
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    raise UsageError(
        f"dataset {repo_id}: no file matches {', '.join(patterns)}; it has {', '.join(names[:_SHOWN_FILES])}{more}",
        hint="name those to read in dataset.files",
    )


def model_commit(repo_id: str, revision: str | None) -> str:
    """The commit (40 hex digits) of a model on the hub; the same for the whole process, so its files belong together.

    Raises:
        UsageError: the hub does not tell, and the cache does not know; within some 15 seconds.
    """
    try:
        return _commit(repo_id, "model", revision)
    except Exception as error:  # as above
        raise hub_error(error, "model", repo_id, revision) from error


def download_model(repo_id: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """The folder with the files of a model on the hub that match (* crosses folders), downloaded where needed.

    Raises:
        UsageError: they cannot be had, in one line with what to do.
    """
    try:
        return _snapshot(repo_id, "model", _commit(repo_id, "model", revision), patterns)
    except Exception as error:  # as above
        raise hub_error(error, "model", repo_id, revision) from error


def has_model_file(resolved: str, revision: str | None, name: str) -> bool:
    """Whether a model, a local folder or a hub id, has a file of this name.

    Raises:
        UsageError: neither hub nor cache can tell: what is optional is not to be left out for want of a network.
    """
    if Path(resolved).is_dir():
        return (Path(resolved) / name).is_file()
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    commit = model_commit(resolved, revision)
    found = try_to_load_from_cache(resolved, name, revision=commit)
    if found is not None:
        return found is not _CACHED_NO_EXIST
    try:
        return name in (cached_names(resolved, "model", commit) or _ask(resolved, "model", commit))
    except Exception as error:  # as above
        raise hub_error(error, "model", resolved, revision) from error


def cached_names(repo_id: str, kind: Kind, commit: str) -> list[str] | None:
    """All files of a repository at a commit, sorted, as the cache remembers them; None where it does not."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return sorted(file.path for file in get_cached_repo_tree(repo_id, repo_type=kind, revision=commit))
    except CachedRepoTreeNotFoundError:
        return None


@cache
def _commit(repo_id: str, kind: Kind, revision: str | None) -> str:
    from huggingface_hub import resolve_revision

    _bound_waiting()
    commit: str = resolve_revision(repo_id, repo_type=kind, revision=revision).resolved
    if not _snapshot_folder(repo_id, kind, commit).is_dir():
        # A commit given in full is resolved without asking, and what is asked afterwards is retried for a minute.
        _ask(repo_id, kind, commit)
    return commit


@cache
def _ask(repo_id: str, kind: Kind, commit: str) -> tuple[str, ...]:
    """The files that the hub lists; one request, not retried."""
    from huggingface_hub import HfApi

    info = HfApi().model_info if kind == "model" else HfApi().dataset_info
    return tuple(sorted(sibling.rfilename for sibling in info(repo_id, revision=commit).siblings or []))


def _file_names(repo_id: str, commit: str) -> Sequence[str]:
    names = cached_names(repo_id, "dataset", commit)
    if names is not None:
        return names
    try:
        return _ask(repo_id, "dataset", commit)
    except Exception as error:
        folder = _snapshot_folder(repo_id, "dataset", commit)
        if not folder.is_dir():
            raise
        # Taking what is there would train on one shard of many without a word.
        raise UsageError(
            f"dataset {repo_id}: in the cache without a list of its files, so that some may be missing",
            hint=f"run once with access to the hub, or if it is complete give it with --source {folder}",
        ) from error


def _snapshot(repo_id: str, kind: Kind, commit: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    def download(*, local_only: bool) -> Path:
        found = snapshot_download(
            repo_id, repo_type=kind, revision=commit, allow_patterns=list(patterns), local_files_only=local_only
        )
        return Path(found)

    if not sys.stderr.isatty():
        disable_progress_bars()
    if cached_names(repo_id, kind, commit) is None:
        try:
            _ask(repo_id, kind, commit)
        except Exception as error:
            try:
                return download(local_only=True)
            except LocalEntryNotFoundError:
                raise error from None
    return download(local_only=False)


def _snapshot_folder(repo_id: str, kind: Kind, commit: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / f"{kind}s--{repo_id.replace('/', '--')}" / "snapshots" / commit


@cache
def _bound_waiting() -> None:
    """Let no request wait for ever: huggingface_hub sets no limit on some of its own."""
    from huggingface_hub import constants, get_session

    def limit(request: Any) -> None:
        given = {name: seconds for name, seconds in request.extensions.get("timeout", {}).items() if seconds}
        limits = {"connect": _CONNECT_SECONDS, "read": constants.HF_HUB_ETAG_TIMEOUT, "write": 60, "pool": 60}
        request.extensions = {**request.extensions, "timeout": {**limits, **given}}

    client = get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks["request"], limit]}


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path, in parts, matches a pattern as `Path.glob` reads it."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])

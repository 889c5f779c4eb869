"""Model files of the Hugging Face hub, into its own cache: for `Llama.from_pretrained`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from os import PathLike
from pathlib import Path
from typing import Any

from llama3jit.errors import DownloadError, InvalidArgumentError, Llama3JitError, UnsupportedError

SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def fetch(
    repo_id: str,
    filename: str,
    additional_files: Sequence[str],
    local_dir: str | PathLike[str] | None,
    cache_dir: str | PathLike[str] | None,
) -> Path:
    """The path of the one file that a pattern matches, fetched with the other shards of its model
    and the additional files. Raises DownloadError for no file or several, with the names there are,
    and for what the hub refuses; UnsupportedError where huggingface_hub is missing."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(
            "from_pretrained needs huggingface_hub: pip install huggingface_hub"
        ) from None
    for name, value in (("repo_id", repo_id), ("filename", filename)):
        if not isinstance(value, str) or not value:
            raise InvalidArgumentError(f"{name} is {value!r:.60}: expected text")
    try:
        files: list[str] = list(hub.HfApi().list_repo_files(repo_id))
        first = _one(files, filename, repo_id)
        wanted = [first, *(_one(files, pattern, repo_id) for pattern in additional_files)]
        wanted += [file for file in _shards(files, first) if file not in wanted]
        paths = [_fetch(hub, repo_id, file, local_dir, cache_dir) for file in wanted]
    except Llama3JitError:
        raise
    except Exception as error:  # of whatever HTTP library the version of huggingface_hub uses
        raise DownloadError(f"{repo_id}: {' '.join(str(error).split())[:300]}") from error
    return Path(paths[0])


def _fetch(hub: Any, repo_id: str, file: str, local_dir: Any, cache_dir: Any) -> str:
    return str(hub.hf_hub_download(repo_id, file, local_dir=local_dir, cache_dir=cache_dir))


def _one(files: Sequence[str], pattern: str, repo_id: str) -> str:
    """The file that a name or a pattern means: of shards, the first."""
    found = [file for file in files if fnmatch(file, pattern)]
    firsts = [file for file in found if "-00001-of-" in file]
    if len(firsts) == 1 and found == sorted(_shards(files, firsts[0])):
        return firsts[0]
    if len(found) == 1:
        return found[0]
    models = [file for file in files if file.endswith(".gguf")]
    raise DownloadError(
        f"{repo_id}: {len(found)} files match {pattern!r}; name one of {', '.join(found or models)}"
    )


def _shards(files: Sequence[str], first: str) -> list[str]:
    """All shards of the model that a file is one of; none if it is whole."""
    match = SHARD.search(first)
    if match is None:
        return []
    stem = first[: match.start()]
    return [file for file in files if SHARD.search(file) and SHARD.split(file)[0] == stem]

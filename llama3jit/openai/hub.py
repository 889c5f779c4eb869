"""Model files of the Hugging Face hub, for `Llama.from_pretrained`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from os import PathLike
from pathlib import Path

from llama3jit.errors import DownloadError, InvalidArgumentError
from llama3jit.files.from_hub import PREFIX, SHARD, list_files, parse
from llama3jit.files.pull import name_of, pull
from llama3jit.files.store import Store, default_store


def fetch(
    repo_id: str,
    filename: str,
    additional_files: Sequence[str],
    local_dir: str | PathLike[str] | None,
    cache_dir: str | PathLike[str] | None,
) -> Path:
    """The path of the one file that a pattern matches. It is pulled into the store, unless folders
    are named or other files come with it, such as the other shards: those huggingface_hub fetches.

    Raises DownloadError for no file or several, with the names there are, and for what the hub
    refuses.
    """
    for name, value in (("repo_id", repo_id), ("filename", filename)):
        if not isinstance(value, str) or not value:
            raise InvalidArgumentError(f"{name} is {value!r:.60}: expected text")
    source = f"{PREFIX}{repo_id}/{filename}"
    stored = local_dir is None and cache_dir is None and not additional_files
    if stored and (model := default_store().find(source)):
        return Path(model.file)
    files = list(list_files(parse(source)))
    first = _one(files, filename, repo_id)
    wanted = [first, *(_one(files, pattern, repo_id) for pattern in additional_files)]
    wanted += [file for file in _shards(files, first) if file not in wanted]
    if stored and len(wanted) == 1:
        return _pull(repo_id, first, default_store())
    return _download(repo_id, wanted, local_dir, cache_dir)


def _pull(repo_id: str, file: str, store: Store) -> Path:
    """By the file's own name, or with the repository's where another model has that."""
    source = f"{PREFIX}{repo_id}/{file}"
    name = name_of(file)
    other = store.find(name)
    if other is not None and other.source != source:
        name = name_of(f"{repo_id}-{file}".replace("/", "-"))
    return pull(source, store=store, name=name)


def _download(
    repo_id: str,
    files: Sequence[str],
    local_dir: str | PathLike[str] | None,
    cache_dir: str | PathLike[str] | None,
) -> Path:
    import huggingface_hub as hub

    local, cache = (
        None if folder is None else os.fspath(folder) for folder in (local_dir, cache_dir)
    )
    try:
        paths = [
            hub.hf_hub_download(repo_id, file, local_dir=local, cache_dir=cache) for file in files
        ]
    except Exception as error:  # of whatever HTTP library the version of huggingface_hub uses
        raise DownloadError(f"{repo_id}: {' '.join(str(error).split())[:300]}") from error
    return Path(paths[0])


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

"""Files of model repositories on the Hugging Face hub: which file is meant, and fetching it.

huggingface_hub knows the hub's address, the token and the offline mode. The bytes come by
`fetch_http`, which goes on where an earlier try stopped; huggingface_hub deletes what it has when a
download ends early.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from llama3jit.errors import DownloadError, InvalidArgumentError
from llama3jit.files.from_http import fetch_http

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from llama3jit.files.store import StoredModel

PREFIX = "hf:"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SOURCE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/:@]+))?(?:/(?P<file>[^:]+)|:(?P<kind>[A-Za-z]+\d\w*))"
)
_NO_MODEL = re.compile(r"(^|/|[-._])(mmproj|imatrix)[-._]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubName:
    """`hf:org/repo/file` or `hf:org/repo:TYPE`, either with `@revision` after the repository."""

    repo: str
    revision: str  # a branch, tag or commit; "" is the main branch
    file: str  # its path in the repository; "" if a type is given
    kind: str  # Q4_K_M, say; "" if a file is given

    def source(self, file: str) -> str:
        """A file of this repository, as `llama3jit pull` takes it."""
        return f"{PREFIX}{self.repo}{f'@{self.revision}' if self.revision else ''}/{file}"

    def means(self, file: str) -> bool:
        """Whether the name is that of this file; whole models alone have types."""
        if self.file:
            return file == self.file
        if not file.lower().endswith(".gguf") or _NO_MODEL.search(file):
            return False
        # Q4_K is no part of Q4_K_M, nor F16 of BF16.
        whole = rf"(?<![A-Za-z0-9]){re.escape(self.kind)}(?![A-Za-z0-9]|_[A-Za-z0-9])"
        return bool(re.search(whole, re.sub(SHARD, ".gguf", file.rpartition("/")[2]), re.I))


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256` is "" and `size` 0 where the hub does not say."""

    source: str
    sha256: str
    size: int  # bytes


def parse(text: str) -> HubName:
    """Raises InvalidArgumentError for what is no name of a hub's file."""
    match = _SOURCE.fullmatch(text)
    if not match or ".." in text:
        raise InvalidArgumentError(
            f"{text}: expected hf:org/repo/file.gguf or hf:org/repo:TYPE, as in hf:org/repo:Q4_K_M"
        )
    return HubName(match["repo"], *(match[part] or "" for part in ("revision", "file", "kind")))


def find_stored(text: str, models: Iterable[StoredModel]) -> StoredModel | None:
    """The pulled model that a hub's name means, without asking the hub; None if there is none, or
    several."""
    name = parse(text)
    start = name.source("")
    found = [
        model
        for model in models
        if model.source.startswith(start) and name.means(model.source.removeprefix(start))
    ]
    return found[0] if len(found) == 1 else None


def find_file(text: str) -> HubFile:
    """The one file that a name means, by the hub's list of the repository's files.

    Raises DownloadError: no such repository or file, with near names; several files, or shards;
    no access, no network, offline.
    """
    name = parse(text)
    files = list_files(name)
    found = [file for file in files if name.means(file)]
    shards = [file for file in found if SHARD.search(file)]
    if shards:
        raise DownloadError(
            f"{text} is a model of {len(shards)} shards, which are not pulled: fetch all into a "
            f"folder, and give the path of one where a model is asked for ({', '.join(shards)})"
        )
    if len(found) > 1:
        raise DownloadError(
            f"{text} means several files; name one: {', '.join(map(name.source, found))}"
        )
    if not found:
        raise DownloadError(f"{text}: there is no such file{_near(name, files)}")
    lfs = files[found[0]].lfs
    return HubFile(name.source(found[0]), lfs.sha256 if lfs else "", int(files[found[0]].size or 0))


def fetch_hub(source: str, part: Path, progress: Callable[[int, int], None]) -> None:
    """Download the file `source`, `hf:org/repo/file`, into `part`; see fetch_http."""
    import huggingface_hub as hub

    utils: Any = hub.utils
    name = parse(source)
    if hub.constants.HF_HUB_OFFLINE:
        raise DownloadError(_offline(source))
    fetch_http(
        hub.hf_hub_url(name.repo, name.file, revision=name.revision or None),
        part,
        progress,
        headers=utils.build_hf_headers(library_name="llama3jit"),
        shown=source,
        login=_no_access(name),
    )


def list_files(name: HubName) -> dict[str, Any]:
    """Path -> what the hub says of each file of a repository.

    Raises DownloadError: no such repository or revision, no access, no network, offline.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    api = hub.HfApi(library_name="llama3jit")
    try:
        info = api.model_info(name.repo, revision=name.revision or None, files_metadata=True)
    except errors.GatedRepoError:
        raise DownloadError(f"{PREFIX}{name.repo}: {_no_access(name)}") from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(
            f"{PREFIX}{name.repo}: there is no such repository{_near_repositories(api, name)}; if "
            "it is private, set HF_TOKEN to a token that may read it"
        ) from None
    except errors.RevisionNotFoundError:
        raise DownloadError(
            f"{PREFIX}{name.repo} has no branch, tag or commit {name.revision!r}"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise DownloadError(_offline(f"{PREFIX}{name.repo}")) from None
    except errors.HFValidationError as error:
        raise InvalidArgumentError(f"{PREFIX}{name.repo}: {error}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = _no_access(name) if status in (401, 403) else "try again later"
        raise DownloadError(f"{PREFIX}{name.repo}: the hub answered {status}; {reason}") from None
    except Exception as error:  # of whatever HTTP library the version of huggingface_hub uses
        raise DownloadError(
            f"{PREFIX}{name.repo}: the hub cannot be reached ({str(error) or type(error).__name__})"
        ) from None
    return {sibling.rfilename: sibling for sibling in info.siblings or ()}


def _near(name: HubName, files: Iterable[str]) -> str:
    """The files that may have been meant, to end a message with."""
    models = [file for file in files if file.lower().endswith(".gguf")]
    if not models:
        return f"; {PREFIX}{name.repo} holds no GGUF files"
    near = get_close_matches(name.file, models, 3, 0.7) if name.file else []
    shown = ", ".join((near or models)[:12]) + (", ..." if len(near or models) > 12 else "")
    return f"; did you mean {shown}" if near else f"; there are {shown}"


def _near_repositories(api: Any, name: HubName) -> str:
    """The same organisation's repositories with like names."""
    owner = name.repo.partition("/")[0]
    names: list[str] = []
    with suppress(Exception):  # a hint is not worth an error
        names = [model.id for model in api.list_models(author=owner, limit=500)]
    near = get_close_matches(name.repo, names, 1, 0.7)
    return f" (did you mean {near[0]}?)" if near else ""


def _no_access(name: HubName) -> str:
    return (
        f"no access; accept the terms on the page of {name.repo} if it has some, and set HF_TOKEN "
        "to a token of yours that may read it"
    )


def _offline(what: str) -> str:
    return f"{what} is not here, and HF_HUB_OFFLINE forbids to fetch it"

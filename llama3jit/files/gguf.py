"""Opens GGUF model files: one file, or all shards of a split one, mapped and not read.

The files must not change while they are open. One that is cut short after `open_gguf` has checked
it kills the process with SIGBUS when the missing pages are touched, as with any mapping.
"""

from __future__ import annotations

import mmap
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError, ModelFormatError, ModelNotFoundError
from llama3jit.files.gguf_cursor import quoted
from llama3jit.files.gguf_header import Header, TensorInfo, check_magic, parse_header
from llama3jit.files.gguf_values import Metadata

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GGUFFile", "Metadata", "TensorInfo", "open_gguf"]

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFFile:
    """An open model file. Threads may share it; arrays that `data` gave outlive `close`."""

    def __init__(self, path: Path, paths: list[Path], maps: list[mmap.mmap], headers: list[Header]):
        self.path = path
        self.paths = paths
        self.version = headers[0].version
        self.alignment = headers[0].alignment
        self.metadata = headers[0].metadata
        self.tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
        self._maps = maps

    @property
    def mapping(self) -> NDArray[np.uint8]:
        """The whole first file, uint8, read-only; what `Metadata.string_spans` points into."""
        import numpy as np

        return np.frombuffer(self._open_maps()[0], np.uint8)

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor: uint8, one-dimensional, read-only, on the mapping.

        Raises InvalidArgumentError when there is no such tensor, or after `close`.
        """
        import numpy as np

        tensor = self._tensor(name)
        return np.frombuffer(
            self._open_maps()[tensor.shard], np.uint8, tensor.nbytes, tensor.offset
        )

    def release(self, name: str) -> None:
        """Give back the memory that a tensor's whole pages take; reading them again rereads the
        file. Does nothing where the platform has no MADV_DONTNEED."""
        tensor = self._tensor(name)
        start = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and start < stop:
            self._open_maps()[tensor.shard].madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Unmap the files; a mapping that arrays still point into goes with the last of them."""
        maps, self._maps = self._maps, []
        _close(maps)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_maps(self) -> list[mmap.mmap]:
        if not self._maps:
            raise InvalidArgumentError(f"{self.path} is closed")
        return self._maps

    def _tensor(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise InvalidArgumentError(f"{self.path} has no tensor {name!r}")
        return self.tensors[name]


def open_gguf(path: str | Path) -> GGUFFile:
    """Open the model at `path`, with its other shards if it is one of several.

    Shards are looked for beside `path` as it is given, so that a link in a hub's cache finds the
    links beside it. Metadata are those of the first shard. Costs one walk over the headers.

    Raises ModelNotFoundError (no such file, a missing shard), ModelFormatError (broken, or not a
    GGUF file), UnsupportedError (a version or byte order that is not read).
    """
    path = Path(path)
    maps: list[mmap.mmap] = []
    try:
        maps.append(_map(path))
        header = parse_header(maps[0], path)
        count = _split_number(header, path, "split.count", 1)
        if count <= 1:
            return GGUFFile(path, [path], maps, [header])
        paths = _shard_paths(header, path, count)
        _close(maps)
        maps.clear()
        headers = []
        for shard, name in enumerate(paths):
            maps.append(_map(name))
            headers.append(parse_header(maps[-1], name, shard))
            _check_shard(headers[-1], name, shard, count)
        _check_split(headers, paths)
        return GGUFFile(path, paths, maps, headers)
    except BaseException:
        _close(maps)
        raise


def _map(path: Path) -> mmap.mmap:
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise ModelFormatError(f"{path} is {kind}; expected a GGUF file")
        with path.open("rb") as file:
            if file.seek(0, 2) < 4:
                file.seek(0)
                check_magic(file.read(), path)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}") from None


def _close(maps: list[mmap.mmap]) -> None:
    for mapping in maps:
        try:
            mapping.close()
        except BufferError:
            continue  # arrays point into it; the last of them unmaps it


def _split_number(header: Header, path: Path, key: str, default: int) -> int:
    if key not in header.metadata:
        return default
    kind = header.metadata.type_name(key)
    if "int" not in kind:
        raise ModelFormatError(f"{path}: {key} is of type {kind}, expected uint16")
    return int(header.metadata[key])


def _shard_paths(header: Header, path: Path, count: int) -> list[Path]:
    """The files of a split model, from the name and the metadata of one of them."""
    number = _split_number(header, path, "split.no", 0) + 1
    match = SHARD_NAME.fullmatch(path.name)
    ending = f"-{number:05d}-of-{count:05d}.gguf"
    if not match or not path.name.endswith(ending):
        raise ModelFormatError(
            f"{path} is shard {number} of {count}, so its name should end in {ending}; keep the "
            "shards as they were named, beside each other (joining them makes no model)"
        )
    paths = [
        path.with_name(f"{match['prefix']}-{index:05d}-of-{count:05d}.gguf")
        for index in range(1, count + 1)
    ]
    for name in paths:
        if not name.exists():
            raise ModelNotFoundError(f"{name}: missing, one of the {count} shards of {path.name}")
    return paths


def _check_shard(header: Header, path: Path, shard: int, count: int) -> None:
    found = (
        _split_number(header, path, "split.no", 0),
        _split_number(header, path, "split.count", 1),
    )
    if found != (shard, count):
        raise ModelFormatError(
            f"{path} says that it is shard {found[0] + 1} of {found[1]}, expected {shard + 1} of "
            f"{count}: files of different models lie beside each other"
        )


def _check_split(headers: list[Header], paths: list[Path]) -> None:
    names: set[str] = set()
    for header, path in zip(headers, paths, strict=True):
        for tensor in header.tensors:
            if tensor.name in names:
                raise ModelFormatError(
                    f"{path}: tensor {quoted(tensor.name)} is in another shard too"
                )
            names.add(tensor.name)
    expected = _split_number(headers[0], paths[0], "split.tensors.count", len(names))
    if expected != len(names):
        raise ModelFormatError(
            f"{paths[0]}: split.tensors.count is {expected}, and the shards hold {len(names)}"
        )

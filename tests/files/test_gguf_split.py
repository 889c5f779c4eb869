"""Models in several files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf_samples import METADATA, tensors
from gguf_writer import gguf_bytes, write_gguf, write_split

from llama3jit.errors import ModelFormatError, ModelNotFoundError
from llama3jit.files.gguf import open_gguf

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_split_model_opens_from_any_shard(tmp_path: Path, opened: int) -> None:
    paths = write_split(tmp_path, "big", METADATA, tensors(), 3)
    with open_gguf(paths[opened]) as file:
        assert file.paths == paths
        assert file.path == paths[opened]
        assert file.metadata["a.text"] == METADATA["a.text"]
        assert set(file.tensors) == set(tensors())
        for name, expected in tensors().items():
            assert file.data(name).tobytes() == expected.tobytes()
            file.release(name)
        assert {info.shard for info in file.tensors.values()} == {0, 1, 2}


def test_a_split_model_of_links_in_a_hub_cache(tmp_path: Path) -> None:
    real = write_split(tmp_path, "big", METADATA, tensors(), 2)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, path in enumerate(real):
        path.rename(blobs / f"hash{number}")
        (snapshot / path.name).symlink_to(blobs / f"hash{number}")
    with open_gguf(snapshot / real[1].name) as file:
        assert file.paths == [snapshot / path.name for path in real]
        assert set(file.tensors) == set(tensors())
    with pytest.raises(ModelFormatError, match=r"is shard 2 of 2, so its name should end in"):
        open_gguf(blobs / "hash1")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "big", METADATA, tensors(), 3)
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"big-00002-of-00003\.gguf: missing"):
        open_gguf(paths[0])


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "big", METADATA, tensors(), 3)
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(ModelFormatError, match="says that it is shard 3 of 3, expected 2 of 3"):
        open_gguf(paths[0])
    split = {"split.no": np.uint16(1), "split.count": np.uint16(3)}
    write_gguf(paths[1], split, {"last": np.ones(3, np.float32), "new": np.ones(3, np.float32)})
    with pytest.raises(ModelFormatError, match="tensor 'last' is in another shard"):
        open_gguf(paths[0])
    write_gguf(paths[1], split, {"new": np.ones(3, np.float32), "newer": np.ones(3, np.float32)})
    with pytest.raises(
        ModelFormatError, match=r"split\.tensors\.count is 4, and the shards hold 5"
    ):
        open_gguf(paths[0])


def test_a_joined_or_renamed_shard(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "big", METADATA, tensors(), 2)
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    with pytest.raises(ModelFormatError, match=r"shard 1 of 2.*00001-of-00002\.gguf"):
        open_gguf(joined)


def test_a_shard_name_alone_makes_no_split(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(gguf_bytes(METADATA, tensors()))
    with open_gguf(path) as file:
        assert file.paths == [path]

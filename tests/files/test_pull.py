"""Pulling from a path, and what holds for all sources."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from gguf_writer import gguf_bytes, write_gguf
from pulling import RAW, SHA256, interrupt_at, left_over

from llama3jit.errors import DownloadError, InvalidArgumentError, ModelNotFoundError
from llama3jit.files import pull as pull_module
from llama3jit.files.pull import pull

if TYPE_CHECKING:
    from pathlib import Path

    from llama3jit.files.store import Store


def test_a_path(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "My Model (1).gguf"
    source.write_bytes(RAW)
    path = pull(str(source), store=store, sha256="SHA256:" + SHA256.upper())
    assert path.name == "my-model-1.gguf"
    assert path.read_bytes() == source.read_bytes() == RAW
    source.write_bytes(gguf_bytes({"general.architecture": "llama"}))
    assert pull(str(source), store=store).stat().st_size < len(RAW)


def test_a_name_that_is_taken(store: Store, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_gguf(tmp_path / folder / "m.gguf", {"general.architecture": folder})
    pull(str(tmp_path / "a/m.gguf"), store=store)
    with pytest.raises(DownloadError, match=r"m is here already, from .*a/m\.gguf.*rm m"):
        pull(str(tmp_path / "b/m.gguf"), store=store)
    assert pull(str(tmp_path / "b/m.gguf"), store=store, name="M2").name == "m2.gguf"


def test_a_file_put_there_by_hand_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    store.root.mkdir()
    (store.root / "m.gguf").write_bytes(b"by hand")
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    with pytest.raises(DownloadError, match="m is here already, from elsewhere"):
        pull(str(tmp_path / "m.gguf"), store=store)
    assert pull("m", store=store).read_bytes() == b"by hand"
    with pytest.raises(DownloadError, match=r"m\.gguf has the SHA-256 .*, expected 0000"):
        pull("m", store=store, sha256="0" * 64)


def test_what_is_no_source(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="'nothing' is neither a model of the catalogue"):
        pull("nothing", store=store)
    with pytest.raises(InvalidArgumentError, match="is no SHA-256: expected 64"):
        pull("nothing", store=store, sha256="12")
    source = write_gguf(tmp_path / "m.gguf", {})
    with pytest.raises(InvalidArgumentError, match="'a/b' cannot name a model"):
        pull(str(source), store=store, name="a/b")
    shard = write_gguf(tmp_path / "m-00001-of-00002.gguf", {})
    with pytest.raises(InvalidArgumentError, match="is one shard of a split model"):
        pull(str(shard), store=store)
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(DownloadError, match="is not a GGUF file"):
        pull(str(tmp_path / "text.gguf"), store=store)
    assert left_over(store) == []


def test_an_interrupted_copy_leaves_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(RAW)
    for stage in ("copying", "checking"):
        with pytest.raises(KeyboardInterrupt):
            pull(str(tmp_path / "m.gguf"), store=store, progress=interrupt_at(stage, 1 << 20))
        assert left_over(store) == []


def test_no_room(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(RAW)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(DownloadError, match=r"m needs 3 MB in .*, and 1 MB are free"):
        pull(str(tmp_path / "m.gguf"), store=store)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    def full(source: Path, part: Path, report: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pull_module, "_copy", full)
    with pytest.raises(DownloadError, match=r"no room for m in .*: No space left on device"):
        pull(str(tmp_path / "m.gguf"), store=store)


@pytest.mark.skipif(sys.platform != "linux", reason="limits file sizes")
def test_a_write_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(RAW)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from llama3jit.files.pull import pull; from llama3jit.files.store import Store\n"
        "from llama3jit.errors import DownloadError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: pull(sys.argv[1], store=Store(Path(sys.argv[2])))\n"
        "except DownloadError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.gguf"), str(store.root)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("no room for m in")
    assert left_over(store) == []

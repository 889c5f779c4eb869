"""Pulling out of a wheel through pip, and by the catalogue's names."""

from __future__ import annotations

import io
import subprocess
import time
import zipfile
from typing import TYPE_CHECKING

import pytest
from pulling import RAW, SHA256, interrupt_at, left_over

from llama3jit.errors import DownloadError, InvalidArgumentError
from llama3jit.files import catalogue
from llama3jit.files import pull as pull_module
from llama3jit.files.catalogue import CatalogueRow
from llama3jit.files.pull import pull

if TYPE_CHECKING:
    from pathlib import Path

    from llama3jit.files.store import Store


def wheel(folder: Path, files: dict[str, bytes], name: str = "demo_models") -> Path:
    """A wheel of version 1.0 with these files."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, raw in files.items():
            archive.writestr(file, raw)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: not-there\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    pytest.importorskip("pip", exc_type=ImportError)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pypi(store: Store, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, {"demo_models/m.gguf": RAW, "demo_models/code.py": b"raise SystemExit"})
    source = "pypi:demo-models==1.0/demo_models/m.gguf"
    row = CatalogueRow("demo", source, SHA256, len(RAW))
    monkeypatch.setitem(catalogue.CATALOGUE, "demo", row)
    seen: list[tuple[str, int, int]] = []
    path = pull("Demo", store=store, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == RAW
    assert left_over(store) == ["demo.gguf", "demo.json"]
    assert store.find("demo").source == source
    assert ("unpacking", len(RAW), len(RAW)) in seen
    # Again: nothing runs, and nothing is hashed.
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(pull_module, "_hash", None)
    start = time.perf_counter()
    assert pull("demo", store=store) == path
    assert time.perf_counter() - start < 0.05


def test_a_lost_record_is_made_again(
    store: Store, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = CatalogueRow("demo", "pypi:demo-models==1.0/m.gguf", SHA256, len(RAW))
    monkeypatch.setitem(catalogue.CATALOGUE, "demo", row)
    store.root.mkdir()
    (store.root / "demo.gguf").write_bytes(RAW)
    assert pull("demo", store=store).read_bytes() == RAW
    assert store.find("demo").sha256 == SHA256


def test_a_damaged_model_is_pulled_again(
    store: Store, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(index, {"m.gguf": RAW})
    row = CatalogueRow("demo", "pypi:demo-models==1.0/m.gguf", SHA256, len(RAW))
    monkeypatch.setitem(catalogue.CATALOGUE, "demo", row)
    path = pull("demo", store=store)
    path.write_bytes(RAW[:-1] + b"\xff")
    assert pull("demo", store=store).read_bytes() == RAW


def test_pypi_refusals(store: Store, index: Path) -> None:
    path = wheel(index, {"demo_models/m.gguf": RAW, "other.txt": b""})
    for source, message in {
        "pypi:nothing-there==1.0/m.gguf": "nothing-there==1.0: pip failed: .*nothing-there==1.0",
        "pypi:demo-models==1.0/n.gguf": r"holds no n\.gguf; its GGUF files: demo_models/m\.gguf",
        "pypi:demo-models==1.0/other.txt": "is not a GGUF file; it looks like an empty file",
    }.items():
        with pytest.raises(DownloadError, match=message):
            pull(source, store=store, name="x")
        assert left_over(store) == []
    for source in ("pypi:a", "pypi:a/m.gguf", "pypi:--help==1/m", "pypi:a==1/", "pypi:a==-r/m"):
        with pytest.raises(InvalidArgumentError, match="expected pypi:package==version/path"):
            pull(source, store=store, name="x")
    raw = bytearray(path.read_bytes())
    raw[len(RAW) // 4] ^= 255
    path.write_bytes(raw)
    with pytest.raises(DownloadError, match=r"is not a sound wheel|pip failed"):
        pull("pypi:demo-models==1.0/demo_models/m.gguf", store=store)
    path.write_bytes(b"PK no wheel")
    with pytest.raises(DownloadError, match=r"demo-models==1.0: pip failed|sound wheel"):
        pull("pypi:demo-models==1.0/demo_models/m.gguf", store=store)
    assert left_over(store) == []


def test_pypi_interrupted(store: Store, index: Path) -> None:
    wheel(index, {"m.gguf": RAW})
    for stage in ("downloading", "unpacking"):
        with pytest.raises(KeyboardInterrupt):
            pull("pypi:demo-models==1.0/m.gguf", store=store, progress=interrupt_at(stage, 0))
        assert left_over(store) == []


def test_zip_names_are_not_paths(store: Store, index: Path, tmp_path: Path) -> None:
    wheel(index, {"../../escaped.gguf": RAW})
    path = pull("pypi:demo-models==1.0/../../escaped.gguf", store=store)
    assert path.parent == store.root
    assert not (tmp_path / "escaped.gguf").exists()
    assert io.BytesIO(path.read_bytes()).read(4) == b"GGUF"

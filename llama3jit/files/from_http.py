"""Fetches a file by HTTP, going on where an earlier try stopped (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llama3jit.errors import DownloadError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import httpx

TRIES = 5  # in a row without a new byte
CHUNK = 1 << 20


def redact(url: str) -> str:
    """The address without user, password, query and fragment, as it may be shown and kept.

    Raises InvalidArgumentError when it is none.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        raise InvalidArgumentError("a malformed address; expected http(s)://host/path")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def fetch_http(
    url: str,
    part: Path,
    progress: Callable[[int, int], None],
    *,
    headers: Mapping[str, str] | None = None,
    shown: str = "",
    login: str = "does it need a login?",
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Download `url` into `part`. What arrived before a failure stays, with a note beside it, and
    the next call asks for the rest if the server's file is still the same.

    progress: called with the bytes that are there and all bytes (0: not known).  headers: sent to
    the server of `url`; a token among them goes to no other.  shown: the address in messages.
    login: what to say where the server refuses access.
    Raises DownloadError.
    """
    import httpx

    shown = shown or redact(url)
    failures = 0
    patience = httpx.Timeout(60, connect=15)
    try:
        with httpx.Client(headers=headers, follow_redirects=True, timeout=patience) as client:
            while True:
                before = _size(part)
                try:
                    _attempt(client, url, part, progress)
                    return
                except httpx.UnsupportedProtocol:
                    raise  # a redirect to elsewhere than http(s); the next try would be the same
                except (httpx.TransportError, _Busy) as error:
                    failures = 0 if _size(part) > before else failures + 1
                    if failures == TRIES:
                        raise DownloadError(
                            f"{shown}: {_reason(error)}; gave up after {TRIES} tries. "
                            "Pull again to go on where it stopped"
                        ) from None
                pause(2.0**failures / 4)
    except _Refused as error:
        hint = f" ({login})" if error.status in (401, 403) else ""
        raise DownloadError(f"{shown}: {error}{hint}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DownloadError(f"{shown}: {_reason(error)}") from None


class _Refused(Exception):
    """An answer that would be the same next time."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class _Busy(Exception):
    """An answer that may be better next time."""


def _attempt(
    client: httpx.Client, url: str, part: Path, progress: Callable[[int, int], None]
) -> None:
    note = part.with_name(part.name + ".json")
    start, headers = _size(part), {"Accept-Encoding": "identity"}
    validator = _read_validator(note, url) if start else None
    if validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    with client.stream("GET", url, headers=headers) as answer:
        start, total = _check_answer(answer, start if validator else 0)
        if answer.status_code == 416:
            # No bytes after those that are here: they are all, or not of this file.
            if start and start == total:
                return
            part.unlink(missing_ok=True)
            raise _Busy("the part that is here does not fit the server's file")
        with part.open("ab" if start else "wb") as file:
            if not start:
                _write_validator(note, url, answer)
            for chunk in answer.iter_raw(CHUNK):
                file.write(chunk)
                progress(file.tell(), total)
            arrived = file.tell()
    if total and arrived != total:
        raise _Busy(f"{arrived} bytes arrived of {total}")


def _check_answer(answer: httpx.Response, asked: int) -> tuple[int, int]:
    """(where the body starts, bytes of the whole file or 0) of an answer that can be used."""
    status = answer.status_code
    if status in (408, 425, 429) or status >= 500:
        raise _Busy(f"the server answered {status} {answer.reason_phrase}")
    if status == 416 and asked:
        span = re.fullmatch(r"bytes \*/(\d+)", answer.headers.get("content-range", ""))
        return asked, int(span[1]) if span else 0
    if status not in (200, 206) or (status == 206 and not asked):
        raise _Refused(f"the server answered {status} {answer.reason_phrase}", status)
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise _Refused("the server compresses the file though asked not to")
    if status == 206:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("content-range", ""))
        if not span or int(span[1]) != asked:
            raise _Refused("the server sent another range than asked for")
        return asked, int(span[2])
    return 0, int(answer.headers.get("content-length", 0))


def _read_validator(note: Path, url: str) -> str | None:
    """What the server called the file that `part` is the start of."""
    try:
        kept: Any = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    same = isinstance(kept, dict) and kept.get("url") == redact(url)
    return str(kept.get("validator") or "") or None if same else None


def _write_validator(note: Path, url: str, answer: httpx.Response) -> None:
    # Only a strong validator tells that two ranges belong to the same bytes.
    tag = answer.headers.get("etag", "")
    validator = tag if tag and not tag.startswith("W/") else answer.headers.get("last-modified")
    note.write_text(json.dumps({"url": redact(url), "validator": validator}))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

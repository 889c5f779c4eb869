"""Sessions in files: the conversation, and the keys and values that the cache holds of it.

8 bytes    b"l3jsess1"
8 bytes    H, little-endian
H bytes    JSON: which model and cache, the conversation, and the sizes of what follows
4 T bytes  the ids of the tokens that the blocks hold, int32
N B bytes  N blocks of the cache, B bytes each, as the device has them
32 bytes   SHA-256 of all before
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama3jit.arguments import split_sampling
from llama3jit.errors import Llama3JitError, SessionError
from llama3jit.files.whole import write_whole
from llama3jit.session import Session
from llama3jit.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from llama3jit.api import Llama
    from llama3jit.arguments import Sampling

MAGIC = b"l3jsess1"
MAX_HEADER = 1 << 28
DIGEST_BYTES = 32


def write_session(path: str | os.PathLike[str], llm: Llama, talk: Talk, sampling: Sampling) -> None:
    """Write a file whole or not at all; it is readable for its owner alone."""
    target = _as_path(path)
    snapshot = llm._engine.save_cache(list(talk.tokens))
    blocks = snapshot.blocks
    header = {
        **_identity(llm),
        "block_bytes": len(blocks[0]) if len(blocks) else 0,
        "n_blocks": len(blocks),
        "n_cached": len(snapshot.tokens),
        "talk": asdict(talk),
        "sampling": _storable(sampling),
    }
    encoded = json.dumps(header).encode()

    def chunks() -> Iterator[bytes]:
        import numpy as np

        yield MAGIC
        yield len(encoded).to_bytes(8, "little")
        yield encoded
        yield np.array(snapshot.tokens, "<i4").tobytes()
        for block in blocks:
            yield block.tobytes()

    def summed() -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in chunks():
            digest.update(chunk)
            yield chunk
        yield digest.digest()

    try:
        write_whole(target, summed(), private=True)
    except OSError as error:
        raise SessionError(f"{target} cannot be written: {error}") from None


def read_session(path: str | os.PathLike[str], llm: Llama, sampling: Sampling) -> Session:
    """The session of a file, its blocks in the cache again; `sampling` goes before the file's.

    Raises SessionError when there is no such file, it is broken or cut short, or was written with
    another model, kv_dtype, precision or device."""
    import numpy as np

    split_sampling(sampling)
    target = _as_path(path)
    try:
        with target.open("rb") as file:
            header = _read_header(file, target)
            _check_identity(header, _identity(llm), target)
            tokens, blocks = _read_cache(file, header, target)
    except OSError as error:
        raise SessionError(f"{target} cannot be read: {error}") from None
    talk = _talk(header["talk"], target)
    stored = header["sampling"]
    if isinstance(stored.get("logit_bias"), list):  # pairs, as JSON has no numbers for keys
        with suppress(TypeError, ValueError):
            stored["logit_bias"] = dict(stored["logit_bias"])
    try:
        merged: Any = {**stored, **sampling}
        session = Session(llm, talk, merged)
    except (Llama3JitError, TypeError) as error:
        raise SessionError(f"{target}: {error}") from None
    if len(tokens):
        from llama3jit.engine.snapshot import CacheSnapshot

        shaped = blocks.reshape(header["n_blocks"], header["block_bytes"])
        llm._engine.load_cache(CacheSnapshot(tokens.astype(np.int64).tolist(), list(shaped)))
    return session


def _as_path(path: str | os.PathLike[str]) -> Path:
    try:
        target = Path(path)
    except TypeError:
        raise SessionError(f"the path of the session is {path!r:.60}; expected text") from None
    if "\0" in str(target):
        raise SessionError(f"the path of the session, {path!r:.60}, has a NUL; leave it out")
    return target


def _identity(llm: Llama) -> dict[str, Any]:
    identity = llm._identity
    return {
        "model": identity.fingerprint(),
        "kv_dtype": identity.kv_dtype,
        "precision": identity.precision,
        "device": llm.device.split(":")[0],
        "block_tokens": llm._engine.limits.block_tokens,
    }


def _check_identity(header: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    for name, value in wanted.items():
        if header[name] == value:
            continue
        if name == "model":
            raise SessionError(f"{path} is a session with another model; load that one to go on")
        raise SessionError(
            f"{path} is a session with {name} {header[name]!r:.40}, and the model was loaded with "
            f"{value!r}; load it with the former to go on"
        )


# The entries of a header and their types.
HEADER = {
    "model": str,
    "kv_dtype": str,
    "precision": str,
    "device": str,
    "block_tokens": int,
    "block_bytes": int,
    "n_blocks": int,
    "n_cached": int,
    "talk": dict,
    "sampling": dict,
}


def _read_header(file: BinaryIO, path: Path) -> dict[str, Any]:
    """The header, once its sizes are known to be those of the file."""
    size = os.fstat(file.fileno()).st_size
    if file.read(8) != MAGIC:
        raise SessionError(f"{path} is no session: it does not begin with {MAGIC.decode()}")
    n_header = int.from_bytes(file.read(8), "little")
    if n_header > min(size - 16 - DIGEST_BYTES, MAX_HEADER):
        raise SessionError(f"{path} is cut short: it has {size} bytes, and a header of {n_header}")
    try:
        header = json.loads(file.read(n_header))
    except (ValueError, RecursionError):
        raise SessionError(f"{path} is broken: its header is no JSON") from None
    for name, kind in HEADER.items():
        value = header.get(name) if isinstance(header, dict) else None
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise SessionError(f"{path} is broken: {name} of its header is {value!r:.60}")
    held = header["n_blocks"] * header["block_tokens"]
    if header["n_cached"] > held or (header["n_blocks"] and not header["n_cached"]):
        raise SessionError(f"{path} is broken: {held} places for {header['n_cached']} tokens")
    expected = 16 + n_header + 4 * header["n_cached"] + DIGEST_BYTES
    expected += header["n_blocks"] * header["block_bytes"]
    if size != expected:
        fault = "cut short" if size < expected else "too long"
        raise SessionError(f"{path} is {fault}: it has {size} bytes of {expected}")
    return dict(header)


def _read_cache(file: BinaryIO, header: dict[str, Any], path: Path) -> tuple[Any, Any]:
    """Tokens [n_cached] int32 and blocks [n_blocks * block_bytes] uint8, once the digest agrees."""
    import numpy as np

    n_head = file.tell()
    n_body = 4 * header["n_cached"] + header["n_blocks"] * header["block_bytes"]
    body: Any = np.fromfile(file, np.uint8, n_body)
    digest = file.read(DIGEST_BYTES)
    file.seek(0)
    computed = hashlib.sha256(file.read(n_head))
    computed.update(memoryview(body))
    if len(body) != n_body or computed.digest() != digest:
        raise SessionError(f"{path} is broken: its contents are not what was written")
    n_ids = 4 * header["n_cached"]
    return body[:n_ids].view("<i4"), body[n_ids:]


def _talk(stored: dict[str, Any], path: Path) -> Talk:
    from llama3jit.text.messages import plain_messages

    try:
        messages = plain_messages(stored["messages"]) if stored["messages"] else []
        return Talk(
            tuple(messages),
            int(stored["left_out_turns"]),
            int(stored["left_out_tokens"]),
            tuple(map(int, stored["tokens"])),
            tuple(map(int, stored["marks"])),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SessionError(f"{path} is broken: its conversation: {error}") from None


def _storable(sampling: Sampling) -> dict[str, Any]:
    """What JSON can hold of the arguments: no functions."""
    stored: dict[str, Any] = {}
    for name, value in sampling.items():
        if name == "logit_bias" and isinstance(value, Mapping):
            value = list(value.items())
        with suppress(TypeError, ValueError):
            stored[name] = json.loads(json.dumps(value, default=_number))
    return stored


def _number(value: Any) -> Any:
    """A NumPy number as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not for JSON")

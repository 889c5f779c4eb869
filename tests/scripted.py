"""A Runner whose logits are a function of the tokens that it finds in its cache, and a tokenizer of
bytes: what generates text without a model.

The cache is kept as a device keeps it, in blocks that are reached through the block tables, so that
a wrong table, position or length shows as wrong text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from llama3jit.devices import Leading, Limits
from llama3jit.errors import CancelledError

BOS, END, USER, ASSISTANT = 256, 257, 258, 259
VOCAB = 260
LIMITS = Limits(
    vocab_size=VOCAB,
    n_ctx=128,
    max_tokens=16,
    max_sequences=8,
    max_logits_rows=8,
    block_tokens=4,
    n_blocks=8 * 32,
)

Script = Callable[[list[int]], np.ndarray]  # the tokens so far -> logits [vocab_size]


def peak(token: int, vocab_size: int = VOCAB) -> np.ndarray:
    """Logits that leave no doubt."""
    row = np.zeros(vocab_size, np.float32)
    row[token] = 50.0
    return row


def noise(history: Sequence[int]) -> np.ndarray:
    """Logits that look random and depend on every token; never peaked, never the special tokens."""
    row = np.random.default_rng(list(history)).standard_normal(VOCAB).astype(np.float32) * 2
    row[256:] = -30.0
    return row


def replying(reply: str, marker: int = ASSISTANT) -> Script:
    """After the last `marker` token: the bytes of `reply`, then END."""
    wanted = [*reply.encode(), END]

    def script(history: list[int]) -> np.ndarray:
        since = history[::-1].index(marker)
        return peak(wanted[min(since, len(wanted) - 1)])

    return script


class ScriptedRunner:
    """Runs a script. `before` is called in every pass with the batch; it may wait or raise. With
    `n_leading` it gives so many of the largest logits when asked for them."""

    def __init__(self, script: Script, limits: Limits = LIMITS, before=None) -> None:
        self.limits = limits
        self.n_leading = 0
        self.asked_leading = 0
        self.device = "cpu"
        self.memory = {"weights": 0}
        self.script = script
        self.before = before
        self.cancelled = threading.Event()
        self.batches: list = []
        self.closed = 0
        self._busy = threading.Lock()
        self._cache = np.full((limits.n_blocks, limits.block_tokens), -1)

    def begin(self) -> None:
        self.cancelled.clear()

    def forward(self, batch):
        assert self._busy.acquire(blocking=False), "two passes at once"
        try:
            self.batches.append(batch)
            self._check(batch)
            if self.before is not None:
                self.before(batch)
            if self.cancelled.is_set():
                raise CancelledError("the pass was cancelled")
            return self._logits(batch)
        finally:
            self.cancelled.clear()
            self._busy.release()

    def leading(self, batch):
        self.asked_leading += 1
        logits = self.forward(batch)
        if not np.isfinite(logits).all():
            return None
        ids = np.argsort(-logits, axis=1, kind="stable")[:, : self.n_leading].astype(np.int32)
        return Leading(ids, np.take_along_axis(logits, ids, axis=1))

    def copy_block(self, source, target) -> None:
        assert not self._busy.locked(), "a block is copied within a pass"
        self._cache[target] = self._cache[source]

    def read_block(self, block):
        return self._cache[block].view(np.uint8).copy()

    def write_block(self, block, data) -> None:
        self._cache[block] = data.view(self._cache.dtype)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed += 1

    def _check(self, batch) -> None:
        limits = self.limits
        assert 1 <= len(batch.tokens) <= limits.max_tokens
        assert 1 <= len(batch.context_lens) <= limits.max_sequences
        assert len(batch.logits_rows) <= limits.max_logits_rows
        assert batch.context_lens.max() <= limits.n_ctx
        for name in batch.__slots__:
            assert getattr(batch, name).dtype == np.int32, name

    def _logits(self, batch) -> np.ndarray:
        size = self.limits.block_tokens
        for token, position, s in zip(batch.tokens, batch.positions, batch.seq_of, strict=True):
            block = batch.block_tables[s, position // size]
            self._cache[block, position % size] = token
        rows = []
        for t in batch.logits_rows:
            table = batch.block_tables[batch.seq_of[t]]
            seen = self._cache[table].reshape(-1)[: batch.positions[t] + 1]
            rows.append(self.script([int(token) for token in seen]))
        return np.array(rows, np.float32).reshape(-1, self.limits.vocab_size)


class ByteTokenizer:
    """A token a byte; BOS, END, USER and ASSISTANT are special."""

    bos_id = BOS
    end_ids = frozenset({END})
    special_ids = frozenset({BOS, END, USER, ASSISTANT})
    add_space_prefix = False
    vocab_size = VOCAB

    def encode(self, text, *, add_bos=None, add_eos=None, parse_special=False, continues=False):
        return [BOS] * (add_bos is not False) + list(text.encode(errors="surrogateescape"))

    def find_special(self, text):
        return None

    def token_bytes(self, token):
        return bytes([token]) if token < 256 else b"<special>"

    def piece(self, token):
        return self.token_bytes(token).decode(errors="replace")

    def decode(self, ids, *, skip_special=False):
        kept = [i for i in ids if not (skip_special and i in self.special_ids)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")


class ByteTemplate:
    """USER text ASSISTANT text ... ASSISTANT."""

    takes_tools = False
    sources = {"default": "{{ messages }}"}  # noqa: RUF012

    def render(self, messages):
        said = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return f"<bos>{said}<assistant>"

    def encode(self, messages):
        ids = [BOS]
        for message in messages:
            marker = ASSISTANT if message["role"] == "assistant" else USER
            ids += [marker, *message["content"].encode(errors="surrogateescape")]
        return [*ids, ASSISTANT]


def scripted_llama(script: Script, limits: Limits = LIMITS, before=None):
    """A Llama that runs a script, with its runner."""
    from llama3jit.api import Llama
    from llama3jit.engine.engine import Engine

    runner = ScriptedRunner(script, limits, before)
    llama = Llama._of(Engine(runner), ByteTokenizer(), {})
    llama.__dict__["_template"] = ByteTemplate()
    return SimpleNamespace(llama=llama, runner=runner)

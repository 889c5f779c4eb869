"""The Python face: `load()` gives a `Llama`, which generates, chats, tokenizes and scores."""

from __future__ import annotations

import time
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from llama3jit.arguments import Messages, Progress, Prompt, Sampling, as_ids, split_sampling
from llama3jit.background import Background, uncollected
from llama3jit.errors import InvalidArgumentError, ModelFormatError
from llama3jit.results import Result, Score, StreamPart, make_stats
from llama3jit.scoring import score_tokens

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.engine.engine import Engine
    from llama3jit.engine.sequence import Request, TokenEvent, Visit
    from llama3jit.text.chat import ChatTemplate
    from llama3jit.text.streaming import TextStream
    from llama3jit.text.tokenizer import Tokenizer

    Parts = Generator[StreamPart, None, None]

IDLE_S = 0.2  # after loading; a program that has a prompt ready has begun with it by then


def load(
    path_or_name: str | Path,
    device: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    kv_dtype: str = "f16",
    precision: str = "fast",
    *,
    chat_template: str | None = None,
    max_sequences: int = 8,
    progress: Progress | None = None,
) -> Llama:
    """Open a GGUF model, given by path or by the name of a pulled one.

    device: "auto" (a GPU if there is one to use, else the CPU), "cpu", "cuda", "cuda:1",
    "reference".  n_ctx: tokens of a sequence; None takes what the model and
    the memory allow.  threads: None takes the physical cores that this process may use.
    kv_dtype: of the cache of keys and values, "f16", "f32", "q8_0" (about half the bytes of f16) or
    "q4_0" (about a quarter, and far less exact).  precision: "fast" (int8 activations) or "exact"
    (f32).  chat_template: jinja text, or the name of a built-in template, in place of the file's.
    max_sequences: how many calls from several threads run in one batch.  progress: called with
    (done, total, name) while kernels compile.

    Raises ModelNotFoundError, ModelFormatError, UnsupportedError (an architecture or a tensor type,
    before anything large is read), MemoryLimitError, DeviceError, InvalidArgumentError.
    """
    from llama3jit.files.store import resolve

    began = time.perf_counter()
    if progress is not None and not callable(progress):
        raise InvalidArgumentError(f"progress is {progress!r:.60}; expected a function")
    with uncollected():
        engine, tokenizer, metadata = _open(
            resolve(path_or_name),
            device=device,
            n_ctx=n_ctx,
            threads=threads,
            kv_dtype=kv_dtype,
            precision=precision,
            max_sequences=max_sequences,
            progress=progress,
        )
    Background(_import_sandbox).start()
    return Llama(engine, tokenizer, metadata, chat_template, time.perf_counter() - began)


def _open(path: Path, **options: Any) -> tuple[Engine, Tokenizer, Mapping[str, Any]]:
    from llama3jit.devices.choose import open_runner
    from llama3jit.files.gguf import open_gguf
    from llama3jit.model.config import read_config
    from llama3jit.text.tokenizer import load_tokenizer

    gguf = open_gguf(path)
    # It takes long and needs none of the weights; before these are packed, two threads would only
    # wait for each other's turn at the interpreter.
    tokenizer: Background[Tokenizer] = Background(lambda: load_tokenizer(gguf.metadata))
    runner = None
    try:
        config = read_config(gguf)
        runner = open_runner(gguf, config, meanwhile=tokenizer.start, **options)
        ready = tokenizer.result()
        _check_vocabulary(ready.vocab_size, config.vocab_size)
    except BaseException:
        if runner is not None:
            runner.close()
        tokenizer.join()
        gguf.close()
        raise
    from llama3jit.engine.engine import Engine

    return Engine(runner, on_close=gguf.close), ready, gguf.metadata


def _import_sandbox() -> None:
    """Import jinja2, which the first chat would wait for; later than a prompt that is there now."""
    time.sleep(IDLE_S)
    import_module("llama3jit.text.sandbox")


def _check_vocabulary(tokens: int, embeddings: int) -> None:
    if tokens != embeddings:
        raise ModelFormatError(
            f"tokenizer.ggml.tokens has {tokens} tokens, and token_embd.weight has rows for "
            f"{embeddings}: the vocabulary and the weights are not of one model; convert it again"
        )


class Llama:
    """An open model; `load` makes it. All methods may be called from several threads at once: the
    calls share the forward passes, and each gives the text that it would give alone.

    Close it, or use it in a `with`, to free its memory; a call that is under way in another thread
    then raises CancelledError. After a fork, the child's calls raise DeviceError.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        metadata: Mapping[str, Any],
        chat_template: str | None = None,
        load_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._metadata = metadata
        self._template_source = chat_template
        self._load_s = load_s
        self._end_ids = frozenset(tokenizer.end_ids)

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may hold, prompt and generated ones together."""
        return self._engine.n_ctx

    @property
    def vocab_size(self) -> int:
        """The width of a row of logits."""
        return self._engine.limits.vocab_size

    def generate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Result:
        """Continue a text, or token ids (used as they are, with no BOS added); see Sampling.

        Special tokens written in a text stay text. Raises ContextOverflowError, with the counts,
        when the prompt does not fit in the context, and NumericsError when the logits are not
        finite. KeyboardInterrupt ends the work in the middle of the prompt too.
        """
        return _last(self.stream(prompt, **sampling))

    def stream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Parts:
        """Like generate, as it goes: a part for each token, and a last one with the result. Wrong
        arguments and prompts raise at once; work begins with the first part asked for. Closing the
        iterator cancels the rest."""
        return self._stream(self._prompt_ids(prompt), sampling, continues=True)

    def chat(self, messages: Messages, **sampling: Unpack[Sampling]) -> Result:
        """Answer a conversation, [{"role": "user", "content": ...}, ...], by its chat template;
        like generate otherwise. Raises TemplateError when there is no template or it refuses."""
        return _last(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: Messages, **sampling: Unpack[Sampling]) -> Parts:
        """Like chat, as it goes; see stream."""
        return self._stream(list(self._template.encode(messages)), sampling, continues=False)

    def tokenize(
        self, text: str, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text. add_bos: None as the file says. parse_special: special tokens written
        in the text become those tokens; else they stay text."""
        return list(self._tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special))

    def detokenize(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of ids; incomplete UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(as_ids(ids), skip_special=skip_special)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [T, vocab_size] f32 after each of T ids (no BOS is added). T * vocab_size * 4
        bytes: `score` does without."""
        import numpy as np

        tokens = as_ids(ids)
        self._engine.check(_visit_request(tokens, _ignore))
        out = np.empty((len(tokens), self.vocab_size), np.float32)

        def keep(first: int, rows: NDArray[np.float32]) -> None:
            out[first : first + len(rows)] = rows

        self._visit(tokens, keep)
        return out

    def score(self, text: Prompt) -> Score:
        """How well the model predicts a text, or token ids.

        What is longer than the context is read in windows of n_ctx tokens that overlap by half: a
        token is scored once, in the first window that holds it, so that it has at least n_ctx / 2
        tokens before it (fewer in the first window). Nothing of size T * vocab_size is held.
        """
        return score_tokens(self._prompt_ids(text), self.n_ctx, self._visit)

    def close(self) -> None:
        """Free the model; may be called twice."""
        self._engine.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _template(self) -> ChatTemplate:
        from llama3jit.text.chat import load_chat_template

        return load_chat_template(self._metadata, self._tokenizer, override=self._template_source)

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt, add_eos=False))
        return as_ids(prompt)

    def _stream(self, tokens: list[int], sampling: Sampling, continues: bool) -> Parts:
        from llama3jit.engine.sequence import Request
        from llama3jit.text.streaming import TextStream

        params, stop = split_sampling(sampling)
        request = Request(tokens, params, self._end_ids)
        self._engine.check(request)
        return self._parts(request, TextStream(self._tokenizer, stop, continues=continues))

    def _parts(self, request: Request, text: TextStream) -> Parts:
        texts: list[str] = []
        events: list[TokenEvent] = []
        handle = self._engine.submit(request)
        try:
            for event in handle:
                events.append(event)
                texts.append(text.push(event.token))
                yield StreamPart(texts[-1], event.token)
                if text.stopped:
                    break
        finally:
            handle.cancel()
        texts.append(text.finish())
        by_length = handle.finish is not None and handle.finish.reason == "length"
        result = Result(
            text="".join(texts),
            tokens=[event.token for event in events],
            finish_reason="length" if by_length and not text.stopped else "stop",
            prompt_tokens=len(request.tokens),
            completion_tokens=len(events),
            seed=handle.seed,
            stats=make_stats(
                load_s=self._load_s,
                submitted=handle.submitted,
                admitted=handle.admitted,
                token_times=[event.time for event in events],
                prompt_tokens=len(request.tokens),
            ),
            logprobs=[e.logprob or 0.0 for e in events] if request.params.logprobs else None,
        )
        yield StreamPart(texts[-1], None, result)

    def _visit(self, tokens: list[int], visit: Visit, visit_from: int = 0) -> None:
        handle = self._engine.submit(_visit_request(tokens, visit, visit_from))
        try:
            for _ in handle:
                pass
        finally:
            handle.cancel()


def _visit_request(tokens: list[int], visit: Visit, visit_from: int = 0) -> Request:
    from llama3jit.engine.sequence import Request

    return Request(tokens, visit=visit, visit_from=visit_from)


def _ignore(first: int, rows: NDArray[np.float32]) -> None:
    return None


def _last(parts: Parts) -> Result:
    result: Result | None = None
    for part in parts:
        result = part.result
    assert result is not None
    return result

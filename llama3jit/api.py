"""The Python face: `load()` gives a `Llama`, which generates, chats, tokenizes and scores."""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from llama3jit.arguments import Messages, OnOverflow, Progress, Prompt, Sampling, as_ids
from llama3jit.background import Background, uncollected
from llama3jit.deferred import Deferred
from llama3jit.errors import InvalidArgumentError
from llama3jit.generation import async_last, chat_generation, last, text_generation
from llama3jit.openai.defaults import Defaults, Pooling
from llama3jit.opening import Identity, import_sandbox, open_model
from llama3jit.overflow import check_overflow
from llama3jit.results import Result, Score
from llama3jit.scoring import all_logits, score_tokens, show_logits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.engine.counters import Counters
    from llama3jit.engine.engine import Engine
    from llama3jit.generation import AsyncParts, Parts
    from llama3jit.openai import chat as chats
    from llama3jit.openai import completion, embedding
    from llama3jit.openai.options import Options
    from llama3jit.session import Session
    from llama3jit.text.chat import ChatTemplate
    from llama3jit.text.tokenizer import Tokenizer


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
    on_overflow: OnOverflow = "error",
    prefix_reuse: bool = True,
    progress: Progress | None = None,
) -> Llama:
    """Open a GGUF model, given by path or by the name of a pulled one.

    device: "auto" (a GPU if there is one to use, else the CPU), "cpu", "cuda", "cuda:1",
    "reference".  n_ctx: tokens of a sequence; None takes what the model and
    the memory allow.  threads: None takes the physical cores that this process may use.
    kv_dtype: of the cache of keys and values, "f16", "f32", "q8_0" (about half the bytes of f16) or
    "q4_0" (about a quarter, and far less exact).  precision: "fast" (int8 activations) or "exact"
    (f32).  chat_template: jinja text, or the name of a built-in template, in place of the file's.
    max_sequences: how many calls from several threads run in one batch.  on_overflow: "error" or
    "shift", for calls that do not say it; see Sampling.  prefix_reuse: a prompt that begins as an
    earlier one, or as what followed it, is read from where they part; the same text comes out.
    progress: called with (done, total, name) while kernels compile.

    Raises ModelNotFoundError, ModelFormatError, UnsupportedError (an architecture or a tensor type,
    before anything large is read), MemoryLimitError, DeviceError, InvalidArgumentError.
    """
    from llama3jit.files.store import resolve

    began = time.perf_counter()
    if progress is not None and not callable(progress):
        raise InvalidArgumentError(f"progress is {progress!r:.60}; expected a function")
    check_overflow(on_overflow)
    with uncollected():
        opened = open_model(
            resolve(path_or_name),
            device=device,
            n_ctx=n_ctx,
            threads=threads,
            kv_dtype=kv_dtype,
            precision=precision,
            max_sequences=max_sequences,
            prefix_reuse=prefix_reuse,
            progress=progress,
        )
    Background(import_sandbox).start()
    identity = Identity(opened.fingerprint, kv_dtype, precision)
    return Llama._of(
        opened.engine,
        opened.tokenizer,
        opened.metadata,
        chat_template,
        time.perf_counter() - began,
        on_overflow=on_overflow,
        identity=identity,
        defaults=Defaults(model=str(path_or_name)),
    )


class Llama:
    """An open model; `load` makes it, and so does `Llama(model_path, ...)`, with llama-cpp-python's
    arguments: docs/openai.md says which have a meaning here. All methods may be called from several
    threads and several event loops at once: the calls share the forward passes, and each gives the
    text that it would give alone.

    Close it, or use it in a `with`, to free its memory; a call that is under way in another thread
    or task then raises CancelledError. After a fork, the child's calls raise DeviceError.
    """

    _engine: Engine
    _tokenizer: Tokenizer
    _metadata: Mapping[str, Any]
    _template_source: str | None
    _load_s: float
    _on_overflow: OnOverflow
    _identity: Identity
    _defaults: Defaults

    def __init__(self, model_path: str | Path, **options: Unpack[Options]) -> None:
        """Open a model as llama-cpp-python does: on the CPU unless n_gpu_layers is given, with 512
        tokens of context unless n_ctx is. Raises as `load` does, and InvalidArgumentError for
        arguments that have no meaning here and would change what is computed."""
        from llama3jit.openai.options import check_device, load_options

        ours, defaults = load_options(model_path, options)
        vars(self).update(vars(load(model_path, **ours)), _defaults=defaults)
        check_device(self.device, options)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        additional_files: Sequence[str] | None = None,
        local_dir: str | PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Pull a file of a repository of the Hugging Face hub, unless it is here, and open it.

        filename: its name, or a pattern that only it matches, as in "*Q8_0.gguf".  local_dir,
        cache_dir: fetch it there, in huggingface_hub's way, and not into the store.  The other
        shards of a model and additional_files come with it, into huggingface_hub's cache.
        local_dir_use_symlinks has no effect, as in huggingface_hub. Raises DownloadError."""
        from llama3jit.openai.hub import fetch

        path = fetch(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(path, **options)

    @classmethod
    def _of(
        cls,
        engine: Engine,
        tokenizer: Tokenizer,
        metadata: Mapping[str, Any],
        chat_template: str | None = None,
        load_s: float = 0.0,
        *,
        on_overflow: OnOverflow = "error",
        identity: Identity | None = None,
        defaults: Defaults | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        self._engine = engine
        self._tokenizer = tokenizer
        self._metadata = metadata
        self._template_source = chat_template
        self._load_s = load_s
        self._on_overflow = on_overflow
        self._identity = identity or Identity(str, "", "")
        self._defaults = defaults or Defaults()
        return self

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may hold, prompt and generated ones together."""
        return self._engine.n_ctx

    @property
    def vocab_size(self) -> int:
        """The width of a row of logits."""
        return self._engine.limits.vocab_size

    @property
    def device(self) -> str:
        """Where the model runs: "cpu", "cuda:0", "reference"."""
        return self._engine.device

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the model takes there, by use."""
        return self._engine.memory

    @property
    def counters(self) -> Counters:
        """What was done since the model was opened, and how full its cache is."""
        return self._engine.counters

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the model file says of itself: "general.name" and the like."""
        return self._metadata

    @property
    def chat_template(self) -> str:
        """The chat template that is used, jinja text; "" if there is none."""
        sources = self._template.sources
        return sources.get("default") or next(iter(sources.values()), "")

    def generate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Result:
        """Continue a text, or token ids (used as they are, with no BOS added); see Sampling.

        Special tokens written in a text stay text. Raises ContextOverflowError, with the counts,
        when the prompt does not fit in the context, and NumericsError when the logits are not
        finite. KeyboardInterrupt ends the work in the middle of the prompt too.
        """
        return last(self.stream(prompt, **sampling))

    def stream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Parts:
        """Like generate, as it goes: a part for each token, and a last one with the result. Wrong
        arguments and prompts raise at once; work begins with the first part asked for. Closing the
        iterator cancels the rest."""
        return text_generation(self, prompt, sampling).parts()

    async def agenerate(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> Result:
        """Like generate, in an event loop, which is held up only while the prompt is tokenized.
        Cancelling the task cancels the work within a step."""
        return await async_last(self.astream(prompt, **sampling))

    def astream(self, prompt: Prompt, **sampling: Unpack[Sampling]) -> AsyncParts:
        """Like stream, for `async for`. Leaving the loop, or cancelling the task, cancels the rest;
        one who keeps the iterator calls its aclose()."""
        return text_generation(self, prompt, sampling).async_parts()

    def chat(self, messages: Messages, **sampling: Unpack[Sampling]) -> Result:
        """Answer a conversation, [{"role": "user", "content": ...}, ...], by its chat template;
        like generate otherwise. Raises TemplateError when there is no template or it refuses."""
        return last(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: Messages, **sampling: Unpack[Sampling]) -> Parts:
        """Like chat, as it goes; see stream."""
        return chat_generation(self, messages, sampling).parts()

    async def achat(self, messages: Messages, **sampling: Unpack[Sampling]) -> Result:
        """Like chat, in an event loop; see agenerate."""
        return await async_last(self.astream_chat(messages, **sampling))

    def astream_chat(self, messages: Messages, **sampling: Unpack[Sampling]) -> AsyncParts:
        """Like stream_chat, for `async for`; see astream."""
        return chat_generation(self, messages, sampling).async_parts()

    if TYPE_CHECKING:
        create_completion = completion.create_completion
        __call__ = completion.create_completion
        create_chat_completion = chats.create_chat_completion
        create_chat_completion_openai_v1 = chats.create_chat_completion_openai_v1
        create_embedding = embedding.create_embedding
    else:
        create_completion = Deferred("llama3jit.openai.completion", "create_completion")
        __call__ = create_completion
        create_chat_completion = Deferred("llama3jit.openai.chat", "create_chat_completion")
        create_chat_completion_openai_v1 = Deferred(
            "llama3jit.openai.chat", "create_chat_completion_openai_v1"
        )
        create_embedding = Deferred("llama3jit.openai.embedding", "create_embedding")

    def session(
        self, system: str | None = None, *, messages: Messages = (), **sampling: Unpack[Sampling]
    ) -> Session:
        """A conversation that remembers its turns, after a system prompt and `messages`, if any;
        `sampling` is for all turns that do not say otherwise."""
        from llama3jit.session import new_session

        return new_session(self, system, messages, sampling)

    def load_session(self, path: str | PathLike[str], **sampling: Unpack[Sampling]) -> Session:
        """Go on with a session that was saved; `sampling` goes before what was saved of it. Raises
        SessionError for a file that is broken, or not of this model, kv_dtype and precision."""
        from llama3jit.session_file import read_session

        return read_session(path, self, sampling)

    def tokenize(
        self, text: str, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text. add_bos: None as the file says. parse_special: special tokens written
        in the text become those tokens; else they stay text."""
        return list(self._tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special))

    def detokenize(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of ids; incomplete UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(as_ids(ids), skip_special=skip_special)

    def render_chat(self, messages: Messages) -> str:
        """The prompt that chat makes of a conversation, as text. Raises TemplateError."""
        return self._template.render(messages)

    def tokenize_chat(self, messages: Messages) -> list[int]:
        """The ids of that prompt; special tokens written in messages stay text."""
        return list(self._template.encode(messages))

    def logits(self, ids: Sequence[int], first: int = 0) -> NDArray[np.float32]:
        """Logits [T - first, vocab_size] f32 after each of T ids but the `first` ones (no BOS is
        added). (T - first) * vocab_size * 4 bytes: `score` does without."""
        return all_logits(self._engine, as_ids(ids), first)

    def score(self, text: Prompt, per_token: bool = False) -> Score:
        """How well the model predicts a text, or token ids; with `per_token` each token's logprob.

        What is longer than the context is read in windows of n_ctx tokens that overlap by half: a
        token is scored once, in the first window that holds it, so that it has at least n_ctx / 2
        tokens before it (fewer in the first window). Nothing of size T * vocab_size is held.
        """
        return score_tokens(
            self._prompt_ids(text), self.n_ctx, partial(show_logits, self._engine), per_token
        )

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: Pooling | None = None,
        normalize: bool = False,
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Vectors of what the model's last layer makes of a text, normalised as its head reads it:
        float32 [n_embd], and of several texts [texts, n_embd].

        pooling: "mean" over the text's tokens, "last" or "first" of them, or "none": [tokens,
        n_embd] of each, in a list. None does as the model was opened, "mean" by `load`. normalize:
        to length 1. Raises UnsupportedError on devices other than "cpu" and "reference",
        ContextOverflowError for a text that is too long.
        """
        from llama3jit.embedding import embed

        return embed(self, texts, pooling, normalize)

    def forward(
        self, ids: Prompt, capture: str | Sequence[str] = ("logits",)
    ) -> dict[str, NDArray[np.float32]]:
        """What the model computes on its way over T tokens, by name: float32 arrays. `*` in a name
        stands for anything: "blk.3.attn_probs", "blk.*.resid", "result_norm", "logits".

        docs/python.md has all names and shapes. A pattern that matches none raises
        InvalidArgumentError with those there are; devices other than "cpu" and "reference" raise
        UnsupportedError. Generation is as fast as ever.
        """
        from llama3jit.capture import captured

        return captured(self, ids, capture)

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

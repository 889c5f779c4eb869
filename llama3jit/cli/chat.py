"""`llama3jit chat`: a conversation in the terminal, or a line a turn from a pipe."""

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from llama3jit.cli import options
from llama3jit.cli.sampling import sampling_options
from llama3jit.cli.streams import one_line, take_any_bytes
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from llama3jit.api import Llama

HELP = """\
/help   this list
/clear  forget the conversation
/bye    leave (also Ctrl-D)
Ctrl-C stops a reply and keeps what there is of it. //text sends /text."""

# What is asked where nobody can ask: no terminal, nothing piped in.
BUILT_IN_QUESTION = "What is the capital of France, and what is it known for?"


@sampling_options
def chat(
    model: options.OptionalModel = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    verbose: options.Verbose = False,
    device: options.Device = "auto",
    n_ctx: options.ContextSize = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
    *,
    more: dict[str, Any],
) -> None:
    """Talk with a model.

    /help lists what else can be typed. Piped in, each line is a turn; with nothing on stdin a
    built-in question is answered.
    """
    from llama3jit.cli.loading import open_model

    take_any_bytes()
    sampling = options.given(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        **more,
    )
    with open_model(model, device, n_ctx, threads, kv_dtype, precision) as llm:
        talk = Conversation(llm, system, sampling, verbose)
        if sys.stdin.isatty():
            say(f"context of {llm.n_ctx} tokens; /help lists the commands")
            for line in typed_lines(talk):
                talk.take(line)
                if talk.over:
                    return
        else:
            answer_piped(talk)
    if talk.failures and not sys.stdin.isatty():
        raise typer.Exit(1)


def say(text: str) -> None:
    """To the person, not into the result."""
    print(text, file=sys.stderr, flush=True)


class Conversation:
    """The turns so far, and what becomes of a line."""

    def __init__(
        self, llm: "Llama", system: str | None, sampling: dict[str, Any], verbose: bool
    ) -> None:
        self.llm = llm
        self.sampling = sampling
        self.verbose = verbose
        self.over = False
        self.failures = 0
        self.unsent = ""  # a turn that failed, to be changed and sent again
        self._system = options.user_turn("", system)[:-1]
        self.messages = list(self._system)

    def take(self, line: str) -> None:
        """Run a command or answer a turn."""
        line = line.strip()
        if line.startswith("/") and not line.startswith("//"):
            self._command(line)
        elif line:
            self._answer(line.removeprefix("/"))

    def _command(self, line: str) -> None:
        if line in ("/bye", "/exit", "/quit"):
            self.over = True
        elif line == "/clear":
            self.messages = list(self._system)
            say("the conversation is forgotten")
        elif line in ("/help", "/?"):
            say(HELP)
        else:
            say(f"{line.split()[0]} is no command; /help lists them, //text sends /text")

    def _answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            reply = self._stream()
        except Llama3JitError as error:
            self.messages.pop()
            self.unsent = text
            self.failures += 1
            say(f"llama3jit: {one_line(str(error))}")
            if len(self.messages) > len(self._system):
                say("the turn was not sent; /clear forgets the conversation so far")
            return
        if reply:
            self.messages.append({"role": "assistant", "content": reply})
        else:  # templates want a reply to each turn
            self.messages.pop()

    def _stream(self) -> str:
        """Print the reply as it comes; what there is of it when Ctrl-C stops it."""
        from llama3jit.cli.loading import describe

        reply = ""
        result = None
        with closing(self.llm.stream_chat(self.messages, **self.sampling)) as parts:
            try:
                for part in parts:
                    reply += part.text
                    print(part.text, end="", flush=True)
                    result = part.result
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                print()
                say("(stopped)" if reply else "(stopped before the reply; the turn is dropped)")
                return reply
            except Llama3JitError:
                if reply:
                    print()
                raise
        print()
        if result is None:
            return reply
        if result.prompt_tokens + result.completion_tokens >= self.llm.n_ctx:
            say(f"(the context of {self.llm.n_ctx} tokens is full; /clear starts afresh)")
        if self.verbose:
            say(describe(result.stats, result.prompt_tokens, result.completion_tokens))
        return reply


def answer_piped(talk: Conversation) -> None:
    """A turn a line; the built-in question if there is none."""
    lines = 0
    for line in sys.stdin:
        lines += 1
        talk.take(line)
        if talk.over:
            return
    if lines == 0:
        say(f">>> {BUILT_IN_QUESTION}")
        talk.sampling.setdefault("temperature", 0.0)
        talk.take(BUILT_IN_QUESTION)


def typed_lines(talk: Conversation) -> Iterator[str]:
    """Lines from the terminal; Ctrl-D ends them. A turn that failed stands there to be changed."""
    try:
        readline: Any = import_module("readline")
    except ImportError:
        readline = None  # no line editing on this platform
    while True:
        if readline is not None and talk.unsent:
            text, talk.unsent = talk.unsent, ""
            readline.set_startup_hook(lambda text=text: readline.insert_text(text))
        try:
            if sys.stdout.isatty():
                line = input(">>> ")
            else:  # input() would put its prompt into the result
                print(">>> ", end="", file=sys.stderr, flush=True)
                line = sys.stdin.readline()
                if not line:
                    raise EOFError
        except KeyboardInterrupt:
            say("\nCtrl-D or /bye leaves")
            continue
        except EOFError:
            say("")
            return
        finally:
            if readline is not None:
                readline.set_startup_hook(None)
        yield line

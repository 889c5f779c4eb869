"""`llama3jit chat`: a conversation in the terminal, or a line a turn from a pipe."""

import sys
from typing import TYPE_CHECKING, Any

import typer

from llama3jit.cli import options
from llama3jit.cli.sampling import sampling_options
from llama3jit.cli.streams import take_any_bytes

if TYPE_CHECKING:
    from llama3jit.cli.repl.conversation import Talk

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
        from llama3jit.cli.repl.conversation import Conversation, Talk

        talk = Talk(llm, Conversation(system, sampling), verbose=verbose)
        if sys.stdin.isatty():
            talk_at_terminal(talk)
            return
        answer_piped(talk)
    if talk.failures:
        raise typer.Exit(1)


def talk_at_terminal(talk: "Talk") -> None:
    """Until the person leaves. What no longer fits is left out, and that is said."""
    from llama3jit.cli.interrupts import ending_in_order
    from llama3jit.cli.repl.loop import open_input, run
    from llama3jit.cli.repl.rendering import say

    talk.at_terminal = True
    talk.conversation.parameters.setdefault("on_overflow", "shift")
    say(f"context of {talk.llm.n_ctx} tokens; /help lists the commands")
    with ending_in_order():
        run(talk, open_input(talk))


def answer_piped(talk: "Talk") -> None:
    """A turn a line; the built-in question if there is none."""
    from llama3jit.cli.repl.answering import take
    from llama3jit.cli.repl.rendering import say

    lines = 0
    for line in sys.stdin:
        lines += 1
        take(talk, line)
        if talk.over:
            return
    if lines == 0:
        say(f">>> {BUILT_IN_QUESTION}")
        talk.conversation.parameters.setdefault("temperature", 0.0)
        take(talk, BUILT_IN_QUESTION)

"""A turn: what the user says goes to the model, the reply to the screen."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from llama3jit.cli.repl.entry import is_command, message_of
from llama3jit.cli.repl.rendering import say, writer
from llama3jit.cli.streams import one_line
from llama3jit.errors import ContextOverflowError, Llama3JitError

if TYPE_CHECKING:
    from llama3jit.arguments import Message
    from llama3jit.cli.repl.conversation import Talk


def take(talk: Talk, text: str) -> None:
    """Run a command or answer a message."""
    text = text.strip()
    if is_command(text):
        from llama3jit.cli.repl.commands import run_command

        run_command(talk, text)
    elif message := message_of(text):
        answer(talk, message)


def answer(talk: Talk, text: str) -> bool:
    """Answer a message; whether there is a reply, or the part of one. The turn stands in the
    conversation then; else the conversation is what it was."""
    conversation = talk.conversation
    message: Message = {"role": "user", "content": text}
    try:
        reply = _stream(talk, conversation.prompt(message))
    except Llama3JitError as error:
        talk.unsent = text
        talk.failures += 1
        say(f"llama3jit: {one_line(str(error))}")
        if conversation.messages:
            say(_what_to_do(error, talk.at_terminal))
        return False
    if reply:  # templates want a reply to each turn
        conversation.messages += [message, {"role": "assistant", "content": reply}]
    elif talk.at_terminal:
        talk.unsent = text
    return bool(reply)


def answer_again(talk: Talk) -> None:
    """Another reply to the last message; the old one stays if there is none."""
    before = talk.conversation.messages, talk.conversation.left_out
    messages = talk.conversation.take_back(1)
    talk.changed()
    answered = False
    try:
        answered = answer(talk, str(messages[0]["content"]))
    finally:
        if not answered:
            talk.conversation.messages, talk.conversation.left_out = before
            talk.changed()
            talk.unsent = ""


def _what_to_do(error: Llama3JitError, at_terminal: bool) -> str:
    done = "the turn was not sent; /clear forgets the conversation so far"
    if at_terminal and isinstance(error, ContextOverflowError):
        return f"{done}, /undo takes the last turn back"
    return done


def _stream(talk: Talk, messages: list[Message]) -> str:
    """Print the reply as it comes; what there is of it when Ctrl-C stops it."""
    reply = ""
    result = None
    screen = writer(sys.stdout, talk.wraps)
    try:
        with closing(talk.llm.stream_chat(messages, **talk.conversation.parameters)) as parts:
            for part in parts:
                reply += part.text
                screen.write(part.text)
                result = part.result
    except KeyboardInterrupt:
        if not talk.at_terminal:
            raise
        talk.changed()
        screen.end()
        say("(stopped)" if reply else "(stopped before the reply; the turn is dropped)")
        return reply
    except Llama3JitError:
        if reply:
            screen.end()
        raise
    screen.end()
    if result is None:
        return reply
    talk.last = result
    talk.used = result.prompt_tokens + result.completion_tokens
    if result.dropped_turns:
        talk.conversation.left_out += result.dropped_turns
        say(f"({_turns(talk.conversation.left_out)} no longer shown to the model: context full)")
    if talk.used >= talk.llm.n_ctx:
        say(f"(the context of {talk.llm.n_ctx} tokens is full; /clear starts afresh)")
    if talk.verbose:
        from llama3jit.cli.loading import describe

        say(describe(result.stats, result.prompt_tokens, result.completion_tokens))
    return reply


def _turns(count: int) -> str:
    return "the oldest turn is" if count == 1 else f"the {count} oldest turns are"

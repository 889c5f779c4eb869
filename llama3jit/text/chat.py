"""Messages to a prompt, by the chat template of a model file: `load_chat_template`.

A prompt is made of the template's own text, whose special tokens count, and of the messages, whose
text stays text. A template may trim, test or rewrite what it is given, so the two are told apart by
one character: wherever text of a message could be read as a special token, a noncharacter goes
inside it. The template sees no other change, and the tokenizer drops the character once the special
tokens are found, so that the ids are those of the real text.
"""

from __future__ import annotations

import json
import re
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError, ModelFormatError, TemplateError
from llama3jit.text.messages import Message, plain_data, plain_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Template

    from llama3jit.text.sandbox import TemplateEnvironment
    from llama3jit.text.tokenizer import Tokenizer

MAX_SOURCE = 1 << 20
_KEY = "tokenizer.chat_template"

# name -> (a token that the vocabulary must have, template), for files without a template.
BUILT_IN = {
    "llama3": (
        "<|start_header_id|>",
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}"
        "{{ message.content | trim }}{{ '<|eot_id|>' }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    "chatml": (
        "<|im_start|>",
        "{% for message in messages %}"
        "{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
}


def load_chat_template(
    metadata: Mapping[str, Any], tokenizer: Tokenizer, *, override: str | None = None
) -> ChatTemplate:
    """The chat template of a file: `override` (jinja text, or the name of a built-in one), else the
    file's own, else a built-in one that suits the vocabulary. With none of these the template
    raises TemplateError when it is used. Raises ModelFormatError if it is no text,
    InvalidArgumentError for an override that is no template."""
    if override is not None:
        if not isinstance(override, str) or (override not in BUILT_IN and "{" not in override):
            raise InvalidArgumentError(
                f"chat_template is {override!r:.60}; expected jinja text, or the name of a "
                f"built-in template ({', '.join(BUILT_IN)})"
            )
        sources = {"default": BUILT_IN[override][1] if override in BUILT_IN else override}
    else:
        sources = _sources(metadata)
    if not sources:
        suits = (
            text for token, text in BUILT_IN.values() if tokenizer.find_special(token) is not None
        )
        sources = dict(zip(["default"], suits, strict=False))
    return ChatTemplate(sources, tokenizer, _named_tokens(tokenizer))


def _sources(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Name -> template: tokenizer.chat_template, and those that tokenizer.chat_templates names."""
    names = metadata.get("tokenizer.chat_templates", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFormatError(f"tokenizer.chat_templates is {names!r:.60}; expected names")
    keys = {"default": _KEY} | {name: f"{_KEY}.{name}" for name in names}
    found = {name: metadata[key] for name, key in keys.items() if key in metadata}
    for name, source in found.items():
        if not isinstance(source, str):
            raise ModelFormatError(f"{keys[name]} is {source!r:.60}; expected text")
    return {name: source for name, source in found.items() if source}


def _named_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """bos_token and its kin, as templates know them."""
    ids = {name: getattr(tokenizer, f"{name}_id") for name in ("bos", "eos", "unk", "pad")}
    return {f"{name}_token": tokenizer.piece(i) for name, i in ids.items() if i is not None}


class ChatTemplate:
    """The template of one model; made by load_chat_template. Safe to use from several threads.

    `sources`: name -> jinja text; "tool_use" is taken for calls with tools, else "default".
    """

    def __init__(
        self, sources: Mapping[str, str], tokenizer: Tokenizer, tokens: Mapping[str, str]
    ) -> None:
        self.sources = dict(sources)
        self._tokenizer = tokenizer
        self._tokens = dict(tokens)
        self._compiled: dict[str, Template] = {}

    @property
    def takes_tools(self) -> bool:
        """Whether the template tells a model of tools."""
        default = next(iter(self.sources.values()), "")
        source = self.sources.get("tool_use", self.sources.get("default", default))
        return re.search(r"\btools\b", source) is not None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text, as jinja renders it. `variables` are more names for the template.

        Raises InvalidArgumentError for messages that are none, TemplateError if the template is
        missing, wrong, too costly, or refuses the messages."""
        data = _data(messages, tools, variables)
        return self._render({**variables, **data, "add_generation_prompt": add_generation_prompt})

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt as token ids, with one BOS if the file or the template asks for it. Special
        tokens written in messages, tools or documents stay text. Raises as render does."""
        data = _data(messages, tools, variables)
        variables["add_generation_prompt"] = add_generation_prompt
        text = self._render({**variables, **data})
        mark = _unused_character(text + json.dumps(data, ensure_ascii=False))
        marked_data = self._marked(data, mark)
        if marked_data != data:
            marked = self._render({**variables, **marked_data})
            marked = marked.replace(_escaped(mark), mark)
            find = self._tokenizer.special_pattern.findall
            # Otherwise the template removed or rewrote what was marked, and the real text is safe.
            if marked.replace(mark, "") == text or find(marked) != find(text):
                text = marked
        return self._tokenizer.encode(text, add_eos=False, parse_special=True, mark=mark)

    def _render(self, variables: Mapping[str, Any]) -> str:
        from jinja2.exceptions import SecurityError
        from jinja2.exceptions import TemplateError as JinjaError

        from llama3jit.text.sandbox import render

        with_tools = bool(variables.get("tools")) and "tool_use" in self.sources
        template = self._compile("tool_use" if with_tools else "default")
        try:
            return render(template, {**self._tokens, **variables})
        except SecurityError as error:
            raise TemplateError(f"the chat template was stopped: {error}") from None
        except JinjaError as error:
            told = "refuses the messages" if type(error) is JinjaError else "failed"
            raise TemplateError(f"the chat template {told}: {error!s:.500}") from None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template failed: {reason:.200}") from None

    def _compile(self, name: str) -> Template:
        if name not in self.sources:
            name = next(iter(self.sources), "")
        if not name:
            raise TemplateError(
                "the model file has no chat template, and its vocabulary suits no built-in one; "
                "complete raw text instead, or give a template"
            )
        if name not in self._compiled:
            self._compiled[name] = _compile(self.sources[name])
        return self._compiled[name]

    def _marked(self, value: Any, mark: str) -> Any:
        """`value` with a mark in all text that could be read as a special token, or as the start or
        the end of one that goes on in the template or in another message."""
        if isinstance(value, dict):
            return {self._marked(k, mark): self._marked(v, mark) for k, v in value.items()}
        if isinstance(value, list):
            return [self._marked(item, mark) for item in value]
        if not isinstance(value, str):
            return value
        starts = {match.start() for match in self._special_starts.finditer(value)}
        begun, ended, longest = self._edges
        tail = max(0, len(value) - longest)
        starts |= {at for at in range(tail, len(value)) if value[at:] in begun}
        cuts = [at + 1 for at in sorted(starts)]
        if any(value[:size] in ended for size in range(1, min(longest, len(value)) + 1)):
            cuts.insert(0, 0)
        bounds = [0, *cuts, len(value)]
        return mark.join(value[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1))

    @cached_property
    def _special_starts(self) -> re.Pattern[str]:
        return re.compile(f"(?={self._tokenizer.special_pattern.pattern})")

    @cached_property
    def _edges(self) -> tuple[frozenset[str], frozenset[str], int]:
        """What special tokens begin with and end with, and the longest's length."""
        texts = self._tokenizer.special_texts
        begun = frozenset(text[:at] for text in texts for at in range(1, len(text)))
        ended = frozenset(text[at:] for text in texts for at in range(1, len(text)))
        return begun, ended, max(map(len, texts), default=0)


def _data(messages: Sequence[Message], tools: Any, variables: dict[str, Any]) -> dict[str, Any]:
    """What comes from outside: messages, tools, documents, as plain data of our own."""
    documents = variables.pop("documents", None)
    return {
        "messages": plain_messages(messages),
        "tools": None if tools is None else plain_data(tools, "tools"),
        "documents": None if documents is None else plain_data(documents, "documents"),
    }


@cache
def _environment() -> TemplateEnvironment:
    from llama3jit.text.sandbox import TemplateEnvironment

    return TemplateEnvironment()


def _compile(source: str) -> Template:
    from jinja2.exceptions import TemplateSyntaxError

    from llama3jit.text.budget import budget

    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; {MAX_SOURCE} at most")
    try:
        with budget(len(source)):  # expressions without variables are worked out already
            return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise TemplateError(
            f"the chat template is wrong in line {error.lineno}: {error.message}; give another one"
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise TemplateError(f"the chat template does not compile: {reason:.200}") from None


def _unused_character(text: str) -> str:
    """A character that `text` lacks, escaped too: a noncharacter, or else a private-use one."""
    for code in chain(range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)):
        if chr(code) not in text and _escaped(chr(code)) not in text:
            return chr(code)
    raise InvalidArgumentError("the messages use every private-use character there is")


def _escaped(mark: str) -> str:
    """The mark as JSON in ASCII has it."""
    return json.dumps(mark)[1:-1]

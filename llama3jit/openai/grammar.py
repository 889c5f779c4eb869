"""llama.cpp's grammars (GBNF) as a response format: `LlamaGrammar`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from os import PathLike


@dataclass(frozen=True, slots=True)
class LlamaGrammar:
    """What `grammar=` of create_completion and create_chat_completion takes; made by its class
    methods, as in llama-cpp-python. `verbose` has no effect."""

    response_format: Mapping[str, Any]

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar in GBNF whose first rule is `root`, or in llguidance's form of Lark. Raises
        InvalidArgumentError for what is neither, UnsupportedError where llguidance is missing."""
        return cls({"type": "grammar", "grammar": _lark(grammar)})

    @classmethod
    def from_file(cls, file: str | PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """The same from a file."""
        try:
            return cls.from_string(Path(file).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"grammar file {file}: {error}") from None

    @classmethod
    def from_json_schema(
        cls, json_schema: str | Mapping[str, Any], verbose: bool = True
    ) -> LlamaGrammar:
        """JSON that keeps to a schema."""
        if isinstance(json_schema, str):
            try:
                json_schema = json.loads(json_schema)
            except ValueError as error:
                raise InvalidArgumentError(f"json_schema is no JSON: {error}") from None
        return cls({"type": "json_schema", "json_schema": {"schema": json_schema}})


def format_of_grammar(grammar: Any) -> Mapping[str, Any]:
    """The response format of what `grammar=` was given: a LlamaGrammar, llama-cpp-python's own, or
    the text of one."""
    if isinstance(grammar, LlamaGrammar):
        return grammar.response_format
    source = grammar if isinstance(grammar, str) else getattr(grammar, "_grammar", None)
    if not isinstance(source, str):
        raise InvalidArgumentError(
            f"grammar is {grammar!r:.60}: expected a llama3jit.LlamaGrammar, or a grammar as text"
        )
    return LlamaGrammar.from_string(source).response_format


def _lark(source: str) -> str:
    try:
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark
    except ImportError:
        raise UnsupportedError(
            "grammar needs llguidance: pip install 'llama3jit[constrained]'"
        ) from None
    if not isinstance(source, str) or not source.strip():
        raise InvalidArgumentError(f"grammar is {source!r:.60}: expected a grammar as text")
    try:
        return str(any_to_lark(source))
    except (GbnfToLarkError, ValueError, KeyError) as error:
        raise InvalidArgumentError(f"grammar: {error}; expected GBNF, or Lark") from None

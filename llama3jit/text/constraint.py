"""Tokens that keep a text within a grammar, by llguidance (extra `[constrained]`)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from llama3jit.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llama3jit.text.tokenizer import Tokenizer

# Between the parts of JSON: nothing, a space, or a new line that is indented. Not any number of
# them, or a model that is at a loss writes spaces to the end of the context.
JSON_WHITESPACE = r"(\x20|\r?\n[\x20\t]{0,32})?"
TYPES = ("text", "json_object", "json_schema", "regex", "grammar")

_EXTRA = "response_format needs llguidance: pip install 'llama3jit[constrained]'"
_vocabularies: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
_lock = threading.Lock()


class GrammarConstraint:
    """Where in a grammar a text is. `allow` and `accept` take tens of microseconds each."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        """The text is whole, and nothing can be added to it."""
        return bool(self._matcher.is_stopped())

    def allow(self, logits: NDArray[np.float32]) -> None:
        """Set the logits [vocab_size] of tokens that lead out of the grammar to -inf; end tokens
        are allowed where the text is whole. Raises UnsupportedError where llguidance gives up."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(mask, count=len(logits), bitorder="little")
        np.copyto(logits, -np.inf, where=allowed == 0)

    def accept(self, token: int) -> None:
        """Go on by a token that was allowed."""
        self._matcher.consume_token(token)
        self._check()

    def copy(self) -> GrammarConstraint:
        """Another at the same place."""
        return GrammarConstraint(self._matcher.deep_copy())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UnsupportedError(
                f"response_format: llguidance gave up: {_first_line(self._matcher.get_error())}; "
                f"simplify the schema or grammar"
            )


def make_constraint(
    response_format: Mapping[str, Any], tokenizer: Tokenizer, end_ids: Iterable[int]
) -> GrammarConstraint | None:
    """What keeps a text to a `response_format`; None for {"type": "text"}.

    {"type": "json_object"}, with "schema" if wanted; {"type": "json_schema", "json_schema":
    {"schema": ...}}; {"type": "regex", "regex": ...} of the whole text, in Rust's syntax; {"type":
    "grammar", "grammar": ...}, in llguidance's form of Lark. Raises InvalidArgumentError for what
    cannot be, UnsupportedError where llguidance is missing.
    """
    kind = _kind(response_format)
    if kind == "text":
        return None
    try:
        import llguidance
    except ImportError:
        raise UnsupportedError(_EXTRA) from None
    grammar = _grammar(llguidance.LLMatcher, kind, response_format)
    matcher = llguidance.LLMatcher(_vocabulary(tokenizer, end_ids), grammar, log_level=0)
    if matcher.is_error():
        raise InvalidArgumentError(
            f"response_format of type {kind!r}: {_first_line(matcher.get_error())}"
        )
    return GrammarConstraint(matcher)


def _kind(response_format: Any) -> str:
    if not isinstance(response_format, Mapping) or response_format.get("type") not in TYPES:
        raise InvalidArgumentError(
            f"response_format is {response_format!r:.80}: expected a dict whose 'type' is one of "
            f"{', '.join(TYPES)}"
        )
    return str(response_format["type"])


def _grammar(matcher: Any, kind: str, response_format: Mapping[str, Any]) -> str:
    if kind in ("regex", "grammar"):
        source = response_format.get(kind)
        if not isinstance(source, str):
            raise InvalidArgumentError(
                f"response_format of type {kind!r} has {kind} {source!r:.60}: expected text"
            )
        from_source = matcher.grammar_from_regex if kind == "regex" else matcher.grammar_from_lark
        try:
            return str(from_source(source))
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"response_format of type {kind!r}: {error}") from None
    schema = response_format.get("schema") or {"type": "object"}
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidArgumentError(f"response_format: the schema is no JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise InvalidArgumentError(
            f"response_format of type {kind!r} has the schema {schema!r:.60}: expected a dict"
        )
    try:
        json.dumps(dict(schema), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"response_format: the schema is no JSON: {error}") from None
    options = {"whitespace_pattern": JSON_WHITESPACE}
    return str(matcher.grammar_from_json_schema(dict(schema), overrides=options))


def _vocabulary(tokenizer: Tokenizer, end_ids: Iterable[int]) -> Any:
    """llguidance's form of a vocabulary; made once, as it takes up to a second."""
    with _lock:
        found = _vocabularies.get(tokenizer)
        if found is None:
            found = _vocabularies[tokenizer] = _make_vocabulary(tokenizer, sorted(end_ids))
    return found


def _make_vocabulary(tokenizer: Tokenizer, end_ids: list[int]) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    special = sorted({*tokenizer.special_ids, *end_ids})
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    if not end_ids:  # one that stands for the end, beyond those that have logits
        end_ids = [len(tokens)]
        special.append(len(tokens))
        tokens.append(b"<end>")
    source = _Source(tokenizer, tokens, special, end_ids[0])
    return LLTokenizer(TokenizerWrapper(source), n_vocab=len(tokens), eos_token=end_ids)


class _Source:
    """A tokenizer as llguidance asks for it."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int], end_id: int
    ) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokens
        self.special_token_ids = special
        self._encode = tokenizer.encode

    def __call__(self, data: bytes) -> list[int]:
        text = data.decode("utf-8", "surrogateescape")
        return list(self._encode(text, add_bos=False, add_eos=False, continues=True))


def _first_line(message: str) -> str:
    return message.strip().split("\n", 1)[0]

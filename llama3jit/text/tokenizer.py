"""Text to token ids and back, with the vocabulary of a GGUF: `load_tokenizer(metadata)`."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llama3jit.errors import InvalidArgumentError
from llama3jit.text.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from llama3jit.text.vocabulary import Vocabulary

_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
# What Python's "surrogateescape" puts for bytes that are no UTF-8.
_ESCAPED_BYTES = re.compile("([\udc80-\udcff]+)")


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `metadata` (of a GGUF: key -> value, arrays as lists or numpy arrays)
    describes. Raises ModelFormatError, UnsupportedError; warns UnknownPretokenizerWarning."""
    return Tokenizer(read_vocabulary(metadata))


class Tokenizer:
    """Byte-level BPE or SentencePiece-style. Safe to use from several threads.

    `special_ids`: tokens that text only becomes when specials are parsed, and that are no text.
    `end_ids`: tokens after which generation ends. `add_bos`, `add_eos`: what the file asks for.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.unk_id, self.pad_id = vocabulary.unk_id, vocabulary.pad_id
        self.end_ids, self.special_ids = vocabulary.end_ids, vocabulary.special_ids
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.add_space_prefix = vocabulary.add_space_prefix
        self._user_defined_ids = vocabulary.user_defined_ids
        if vocabulary.model == "llama":
            from llama3jit.text.sentencepiece import SentencePieceModel

            self._model: Any = SentencePieceModel(vocabulary)
        else:
            from llama3jit.text.bytelevel import ByteLevelModel

            self._model = ByteLevelModel(vocabulary)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        parse_special: bool = False,
        mark: str = "",
        continues: bool = False,
    ) -> list[int]:
        """Ids of `text`. BOS and EOS are added as the file says (None) or as told, and never to a
        text that has them already. With `parse_special` the text of special tokens becomes these
        tokens; a `mark` character within it keeps it text, and is left out of all text.
        `continues`: the text goes on with another, so that SentencePiece puts no space before."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text to tokenise is {type(text).__name__}; expected str")
        ids: list[int] = []
        after_special = not continues
        for part, special in self._split_specials(text, mark, parse_special):
            if special is not None:
                ids.append(special)
            else:
                self._encode_text(part, after_special, ids)
            after_special = special is not None
        if self._wants(add_bos, self.add_bos, self.bos_id, "BOS") and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)  # type: ignore[arg-type]
        if self._wants(add_eos, self.add_eos, self.eos_id, "EOS") and ids[-1:] != [self.eos_id]:
            ids.append(self.eos_id)  # type: ignore[arg-type]
        return ids

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = False, continues: bool = False
    ) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD. SentencePiece puts a space before
        a text, which is taken away again unless the ids are said to continue one."""
        data = bytearray()
        strips = self.add_space_prefix and not continues
        for index in ids:
            if skip_special and index in self.special_ids:
                continue
            piece = self.token_bytes(index)
            if strips and index not in self.special_ids:
                piece, strips = piece.removeprefix(b" "), False
            data += piece
        return data.decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """The bytes that one token adds to the text, raw: they may be a part of a character."""
        index = self._checked(index)
        if index in self.special_ids or index in self._user_defined_ids:
            return self._tokens[index].encode("utf-8", "replace")
        data: bytes = self._model.token_bytes(index)
        return data

    def piece(self, index: int) -> str:
        """The token as text, for people: bytes that are no UTF-8 show as U+FFFD."""
        return self.token_bytes(index).decode("utf-8", "replace")

    def find_special(self, text: str) -> int | None:
        """The id of the special token with that text."""
        return self._special_by_text.get(text)

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Finds the text of special tokens, the longest where several start."""
        return _any_of(self._special_by_text)

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """The text of every special token."""
        return tuple(self._special_by_text)

    @cached_property
    def _special_by_text(self) -> dict[str, int]:
        return self._by_text(self.special_ids)

    @cached_property
    def _user_defined_by_text(self) -> dict[str, int]:
        return self._by_text(self._user_defined_ids)

    @cached_property
    def _user_defined_pattern(self) -> re.Pattern[str]:
        return _any_of(self._user_defined_by_text)

    def _by_text(self, ids: Iterable[int]) -> dict[str, int]:
        # From the highest id, so that of equal texts the lowest id stays.
        return {self._tokens[i]: i for i in sorted(ids, reverse=True) if self._tokens[i]}

    def _split_specials(
        self, text: str, mark: str, parse_special: bool
    ) -> Iterator[tuple[str, int | None]]:
        """(plain text, None) and (special or user-defined token's text, its id), in order."""
        pattern = self.special_pattern if parse_special else None
        for part, special in _split(text, pattern, self._special_by_text):
            if special is not None:
                yield part, special
                continue
            plain = part.replace(mark, "") if mark else part
            pattern = self._user_defined_pattern if self._user_defined_ids else None
            yield from _split(plain, pattern, self._user_defined_by_text)

    def _encode_text(self, text: str, after_special: bool, ids: list[int]) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            ids.extend(self._encode_surrogates(text, after_special))
        else:
            ids.extend(self._model.encode(text, after_special))

    def _encode_surrogates(self, text: str, after_special: bool) -> Iterator[int]:
        """Ids of text with surrogates: pairs become their character, those that stand for
        undecodable bytes these bytes, others U+FFFD."""
        for at, part in enumerate(_ESCAPED_BYTES.split(_SURROGATES.sub(_joined, text))):
            if at % 2:
                for byte in part.encode("utf-8", "surrogateescape"):
                    yield from self._model.encode_byte(byte)
            elif part:
                yield from self._model.encode(part, after_special and at == 0)

    def _wants(self, told: bool | None, asked: bool, index: int | None, name: str) -> bool:
        if told and index is None:
            raise InvalidArgumentError(f"{name} was asked for, but the vocabulary has none")
        return asked if told is None else told

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.vocab_size:
            raise InvalidArgumentError(
                f"token id {index} is not in the vocabulary (0 to {self.vocab_size - 1})"
            )
        return int(index)


def _joined(match: re.Match[str]) -> str:
    if _ESCAPED_BYTES.fullmatch(match[0]):
        return match[0]
    return match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _split(
    text: str, pattern: re.Pattern[str] | None, ids: Mapping[str, int]
) -> Iterator[tuple[str, int | None]]:
    at = 0
    for match in pattern.finditer(text) if pattern else ():
        if match.start() > at:
            yield text[at : match.start()], None
        yield match[0], ids[match[0]]
        at = match.end()
    if at < len(text):
        yield text[at:], None

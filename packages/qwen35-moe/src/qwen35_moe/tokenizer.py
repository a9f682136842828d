"""Text to token ids, through a checkpoint's ``tokenizer.json``, and back, without broken characters in a stream."""

import codecs
from pathlib import Path

import tokenizers

from qwen35_moe.errors import PromptError, Qwen35MoeError


class TokenizerError(Qwen35MoeError):
    """A `tokenizer.json` that is missing, damaged, or not of the byte-level kind."""


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable characters of Latin-1 stand for themselves, the other bytes for the characters from 256 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """A byte-level BPE tokenizer.

    Special tokens that stand in a text literally are read as what they are.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of a checkpoint or program folder.

        Raises TokenizerError where there is none, or one of another kind.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{folder}: there is no tokenizer.json in it")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the bindings raise nothing narrower
            raise TokenizerError(f"{path}: not a tokenizer: {error}") from error
        decoder = type(backend.decoder).__name__
        if decoder != "ByteLevel":
            raise TokenizerError(f"{path}: expected a byte-level tokenizer, got decoder {decoder}")
        return cls(backend)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; no token is added to it.

        Raises PromptError where the text has half of a surrogate pair, which is no character: text that was not UTF-8.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            wrong = text[error.start]
            raise PromptError(
                f"text: expected Unicode characters, got the surrogate {wrong!r}; was it UTF-8?"
            ) from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids as a stream would show it: special tokens left out, broken characters replaced."""
        stream = Detokenizer(self)
        return "".join(map(stream.push, ids)) + stream.flush()

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text: none for a special token or an id that is not known."""
        if (added := self._added.get(token)) is not None:
            return b"" if added.special else added.content.encode()
        piece = self._backend.id_to_token(token)
        return b"" if piece is None else bytes(_BYTES[character] for character in piece)


class Detokenizer:
    """Text of one stream of tokens: bytes of an unfinished character are held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the characters that this token completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """End the stream: an unfinished character becomes U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

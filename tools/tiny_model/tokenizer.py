"""The tiny model's tokenizer: byte-level BPE trained on the generator's text, with the special tokens of the family.

Run as ``python -m tools.tiny_model.tokenizer`` to write ``tokenizer.json`` and ``tokenizer_config.json`` again.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from qwen35_moe.chat import ChatTemplate
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.tiny_model.corpus import TEMPLATE_FILE, draw_document

VOCABULARY = 2048
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
"""Tokens that decoding may skip."""
MARKS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Tokens that are part of the text."""

PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The family's split into words, single digits, punctuation and white space."""

_MARK = re.compile("|".join(re.escape(token) for token in (*SPECIAL, *MARKS)))


def training_texts(count: int, template: ChatTemplate) -> Iterator[str]:
    """Yield the texts of the first documents, cut at the special tokens."""
    for seed in range(count):
        yield from (piece for piece in _MARK.split(draw_document(seed, template).text) if piece)


def train_tokenizer(documents: int = 20_000) -> Tokenizer:
    """Train the tokenizer; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(documents, ChatTemplate.from_file(TEMPLATE_FILE)), trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=token in SPECIAL, normalized=False) for token in (*SPECIAL, *MARKS)]
    )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and the small configuration that transformers wants beside it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tokenizer(train_tokenizer(), TEMPLATE_FILE.parent)

"""Documents: stories and rendered conversations with their information content, and rows of tokens for training."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qwen35_moe.chat import ChatTemplate
from tokenizers import Tokenizer

from tools.tiny_model.conversations import Conversation, draw_conversation
from tools.tiny_model.grammar import Draw
from tools.tiny_model.stories import STORIES

END_OF_TEXT = "<|endoftext|>"
TEMPLATE_FILE = Path(__file__).parents[2] / "packages/qwen35-tiny/src/qwen35_tiny/checkpoint/chat_template.jinja"
HELD_OUT_SEED = 1_000_000_007
"""Seeds from here on are never trained on."""


DOCUMENTS_PER_ROW = 64
"""More than fit into a row, so that no document is seen twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text without its end mark, and an upper bound of its information content (exact for stories)."""

    kind: str
    text: str
    nats: float


def render(conversation: Conversation, template: ChatTemplate) -> str:
    """Return a whole conversation as text, the answer included."""
    return template.render(
        conversation.messages,
        tools=conversation.tools,
        add_generation_prompt=False,
        enable_thinking=conversation.thinking,
    )


def draw_document(seed: int, template: ChatTemplate) -> Document:
    """Draw the document of a seed: a story or a conversation, equally often."""
    draw = Draw(random.Random(seed))
    if draw.chance(0.5):
        text, _ = STORIES.generate(draw)
        return Document(kind="story", text=text, nats=draw.nats)
    return Document(kind="conversation", text=render(draw_conversation(draw), template), nats=draw.nats)


def documents(first_seed: int, template: ChatTemplate) -> Iterator[Document]:
    """Draw the documents of consecutive seeds without end."""
    seed = first_seed
    while True:
        yield draw_document(seed, template)
        seed += 1


def row(number: int, length: int, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Return ``length`` tokens: whole documents, each closed by the end mark, the last one cut.

    Odd rows begin with an end mark, even ones with nothing, so that the first document is read either way.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens: list[int] = [end] if number % 2 else []
    source = documents(number * DOCUMENTS_PER_ROW, template)
    while len(tokens) < length:
        tokens += [*tokenizer.encode(next(source).text).ids, end]
    return tokens[:length]

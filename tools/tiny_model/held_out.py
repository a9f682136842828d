"""Write the held-out texts that ship beside the tiny model: ``python -m tools.tiny_model.held_out``."""

from qwen35_moe.chat import ChatTemplate

from tools.tiny_model.corpus import END_OF_TEXT, HELD_OUT_SEED, TEMPLATE_FILE, draw_document

DOCUMENTS = 100
PATH = TEMPLATE_FILE.parents[1] / "held_out.txt"


def held_out_text(count: int = DOCUMENTS) -> str:
    """Return the first held-out documents, each closed by the end mark."""
    template = ChatTemplate.from_file(TEMPLATE_FILE)
    return "".join(draw_document(HELD_OUT_SEED + index, template).text + END_OF_TEXT for index in range(count))


if __name__ == "__main__":
    PATH.write_text(held_out_text(), encoding="utf-8")

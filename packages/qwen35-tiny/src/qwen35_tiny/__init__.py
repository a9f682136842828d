"""A small Qwen3.5-MoE checkpoint, as a package."""

from pathlib import Path

__all__ = ["checkpoint_path", "held_out_path"]


def checkpoint_path() -> Path:
    """Return the folder of the checkpoint: Hugging Face layout, bfloat16, with tokenizer and chat template."""
    return Path(__file__).parent / "checkpoint"


def held_out_path() -> Path:
    """Return a file of texts that the model was not trained on, each closed by the end-of-text mark."""
    return Path(__file__).parent / "held_out.txt"

"""A small Qwen3.5-MoE checkpoint, as a package."""

from pathlib import Path

__all__ = ["checkpoint_path"]


def checkpoint_path() -> Path:
    """Return the folder of the checkpoint: Hugging Face layout, bfloat16, with tokenizer and chat template."""
    return Path(__file__).parent / "checkpoint"

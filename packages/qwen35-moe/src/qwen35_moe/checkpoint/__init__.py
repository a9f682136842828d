"""Hugging Face checkpoints: reading safetensors lazily, and the table from their names to the model's weights."""

from qwen35_moe.checkpoint.load import load_decoder, stream_weights
from qwen35_moe.checkpoint.reader import Checkpoint, TensorEntry
from qwen35_moe.checkpoint.table import Block, Source, Target, check_names, targets

__all__ = [
    "Block",
    "Checkpoint",
    "Source",
    "Target",
    "TensorEntry",
    "check_names",
    "load_decoder",
    "stream_weights",
    "targets",
]

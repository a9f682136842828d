"""Quantization of the model's matrices to int4."""

from qwen35_moe.quantize.int4 import QuantizedMatrix, check_group_size

__all__ = ["QuantizedMatrix", "check_group_size"]

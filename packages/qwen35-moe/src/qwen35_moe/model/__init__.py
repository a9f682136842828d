"""The Qwen3.5-MoE decoder, written over the operators of cuda-kernels."""

from qwen35_moe.model.decoder import Decoder
from qwen35_moe.model.methods import Decode, Prefill, Sample
from qwen35_moe.model.sampler import TokenHistory
from qwen35_moe.model.weights import Int4, ModelFormat

__all__ = ["Decode", "Decoder", "Int4", "ModelFormat", "Prefill", "Sample", "TokenHistory"]

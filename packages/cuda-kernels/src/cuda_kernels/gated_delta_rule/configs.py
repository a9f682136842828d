"""Launch configurations of the family, by shape."""

from cuda_kernels.gated_delta_rule.layout import DeltaNetShape


def decode_warps(shape: DeltaNetShape) -> int:
    """Return the warps that share a head's state in the decode step: about 32 elements a thread."""
    elements = shape.key_dim * shape.value_dim
    return 16 if elements >= 16384 else 8 if elements >= 4096 else 4

"""RMS norms in plain torch; all arithmetic is float32, rounded once."""

import torch

from cuda_kernels import int4


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · (weight, or 1 + weight) in x's dtype."""
    gain = weight.to(torch.float32)
    return _normed(x, gain + 1.0 if unit_offset else gain, eps).to(x.dtype)


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the norm of each run of D = len(weight) columns, times weight and silu(gate), in x's dtype."""
    heads = x.unflatten(-1, (-1, weight.shape[0]))
    normed = _normed(heads, weight.to(torch.float32), eps).flatten(-2)
    return (normed * torch.nn.functional.silu(gate.to(torch.float32))).to(x.dtype)


def rms_norm_int8(
    x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool, group_size: int
) -> int4.Int8Rows:
    """Return the norm, quantized from float32."""
    normed = rms_norm(x.to(torch.float32), weight, eps, unit_offset)
    return int4.quantize_activation(normed, group_size=group_size)


def _normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.to(torch.float32)
    return x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * gain

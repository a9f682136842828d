"""RMS norms in plain torch."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · (weight, or 1 + weight), computed in float32, in x's dtype."""
    x32 = x.to(torch.float32)
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    gain = weight.to(torch.float32) + 1.0 if unit_offset else weight.to(torch.float32)
    return (normed * gain).to(x.dtype)

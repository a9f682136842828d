"""Activations inside kernels."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def silu(x):
    """Return x · sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), linear above 20."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))

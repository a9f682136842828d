"""Kernel pieces: RMS norm with unit offset and partial rotary embedding of query and key heads.

Both together are linear in an element x and its partner in the rotation:
y = (x · direct + partner · crossed) / rms(x), direct = (1 + w) · cos and crossed = ∓(1 + w of the partner) · sin.
The partner is loaded a second time: it comes from the cache, a shuffle would not.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl


@triton.jit
def _partner_of(o_d, HALF: tl.constexpr):
    return tl.where(o_d < HALF, o_d + HALF, o_d - HALF)


@triton.jit
def load_rotation(p_weight, p_angles, m_rows, D: tl.constexpr, ROTARY: tl.constexpr):
    """Return (direct, crossed), float32 (N, D), of the pointers (N, 1) to rows of cosines and then sines."""
    HALF: tl.constexpr = ROTARY // 2
    o_d = tl.arange(0, D)[None, :]
    direct = tl.load(p_weight + o_d).to(tl.float32) + 1.0
    crossed = tl.zeros((1, D), tl.float32)
    if HALF > 0:
        m_d = m_rows & (o_d < ROTARY)
        partner = tl.load(p_weight + _partner_of(o_d, HALF), mask=o_d < ROTARY, other=0.0).to(tl.float32) + 1.0
        sin = tl.load(p_angles + HALF + o_d % HALF, mask=m_d, other=0.0)
        crossed = tl.where(o_d < HALF, -sin, sin) * partner
        direct = tl.load(p_angles + o_d % HALF, mask=m_d, other=1.0) * direct
    return direct, crossed


@triton.jit
def load_heads(p_heads, m_heads, D: tl.constexpr, ROTARY: tl.constexpr):
    """Return the heads at pointers (N, 1), and the partner of each element, float32 (N, D); masked ones are zero."""
    o_d = tl.arange(0, D)[None, :]
    x = tl.load(p_heads + o_d, mask=m_heads, other=0.0).to(tl.float32)
    partner = tl.load(p_heads + _partner_of(o_d, ROTARY // 2), mask=m_heads & (o_d < ROTARY), other=0.0).to(tl.float32)
    return x, partner


@triton.jit
def rotate(x, partner, direct, crossed, eps, D: tl.constexpr):
    """Return the normed and rotated heads (N, D) float32."""
    return (x * direct + partner * crossed) * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]

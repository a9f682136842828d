"""Loading of query and key heads in kernels: RMS norm with unit offset, then partial rotary embedding."""

# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

import triton
import triton.language as tl


@triton.jit
def load_rotated(p_heads, p_weight, p_angles, m_heads, eps, D: tl.constexpr, ROTARY: tl.constexpr):
    """Return the normed and rotated heads, (N, D) float32; masked ones are zero.

    p_heads: (N, 1) pointers to the heads' first elements; p_angles: (N, 1) or (1, 1) pointers to rows of cos and sin.
    The partner of an element in the rotation is loaded a second time: it comes from the cache, a shuffle would not.
    """
    HALF: tl.constexpr = ROTARY // 2
    o_d = tl.arange(0, D)[None, :]
    x = tl.load(p_heads + o_d, mask=m_heads, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    y = x * inverse * (tl.load(p_weight + o_d).to(tl.float32) + 1.0)
    if HALF > 0:
        m_d = o_d < ROTARY
        o_partner = tl.where(o_d < HALF, o_d + HALF, o_d - HALF)
        partner = tl.load(p_heads + o_partner, mask=m_heads & m_d, other=0.0).to(tl.float32)
        gain = tl.load(p_weight + o_partner, mask=m_d, other=0.0).to(tl.float32) + 1.0
        cos = tl.load(p_angles + o_d % HALF, mask=m_heads & m_d, other=1.0)
        sin = tl.load(p_angles + HALF + o_d % HALF, mask=m_heads & m_d, other=0.0)
        y = y * cos + tl.where(o_d < HALF, -sin, sin) * (partner * inverse * gain)
    return y

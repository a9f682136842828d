"""The inverse of a unit lower triangular tile, on tensor cores, by joining inverses of diagonal blocks."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def _diagonal_blocks(x, SIZE: tl.constexpr):
    """Return the diagonal blocks of x (C, C), (C / SIZE, SIZE, SIZE)."""
    N: tl.constexpr = x.shape[0] // SIZE
    blocks = tl.permute(tl.reshape(x, (N, SIZE, N, SIZE)), (0, 2, 1, 3))
    o_block = tl.arange(0, N)
    diagonal = (o_block[:, None] == o_block[None, :])[:, :, None, None]
    return tl.sum(tl.where(diagonal, blocks, 0.0), 1)


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """Return the products of two stacks of tiles (N, S, S); one tile alone is divided among all warps."""
    N: tl.constexpr = a.shape[0]
    S: tl.constexpr = a.shape[1]
    if N == 1:
        product = tl.dot(tl.reshape(a, (S, S)), tl.reshape(b, (S, S)), input_precision=PRECISION)[None, :, :]
    else:
        product = tl.dot(a, b, input_precision=PRECISION)
    return product


@triton.jit
def _refine(inverse, lower, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """Within tiles (N, S, S), return the inverses of blocks of size 2 · HALF from those of size HALF.

    [A 0; B D]⁻¹ = [A⁻¹ 0; -D⁻¹ B A⁻¹ D⁻¹], B alone kept of `lower`.
    """
    o = tl.arange(0, lower.shape[1]) // HALF
    corner = (o[:, None] % 2 == 1) & (o[None, :] == o[:, None] - 1)
    below = tl.where(corner[None, :, :], lower, 0.0)
    return inverse - _product(_product(inverse, below, PRECISION), inverse, PRECISION)


@triton.jit
def _join(inverse, lower, PRECISION: tl.constexpr):
    """Return the inverses of tiles (N, 2S, 2S) from those of their diagonal halves (2N, S, S)."""
    N: tl.constexpr = lower.shape[0]
    S: tl.constexpr = inverse.shape[1]
    upper, under = tl.split(tl.permute(tl.reshape(inverse, (N, 2, S, S)), (0, 2, 3, 1)))
    _, bottom = tl.split(tl.permute(tl.reshape(lower, (N, 2, S, 2, S)), (0, 2, 4, 3, 1)))
    below, _ = tl.split(bottom)
    corner = -_product(_product(under, below, PRECISION), upper, PRECISION)
    halves = tl.join(tl.join(upper, corner), tl.join(tl.zeros_like(upper), under))  # (N, S, S, row half, column half)
    return tl.reshape(tl.permute(halves, (0, 3, 1, 4, 2)), (N, 2 * S, 2 * S))


@triton.jit
def unit_lower_inverse(lower, PRECISION: tl.constexpr):
    """Return (I + lower)⁻¹ of a strictly lower triangular tile (64, 64) float32.

    Only true inverses of diagonal blocks are ever formed, so nothing larger than the result's own entries appears, as
    powers of `lower` would.
    """
    o = tl.arange(0, 16)
    identity = tl.where((o[:, None] == o[None, :])[None, :, :], 1.0, 0.0)
    blocks = _diagonal_blocks(lower, 16)
    # The inverse of a block of two rows is its mirror image.
    pairs = (o[:, None] % 2 == 1) & (o[None, :] == o[:, None] - 1)
    inverse = identity - tl.where(pairs[None, :, :], blocks, 0.0)
    inverse = _refine(inverse, blocks, 2, PRECISION)
    inverse = _refine(inverse, blocks, 4, PRECISION)
    inverse = _refine(inverse, blocks, 8, PRECISION)
    inverse = _join(inverse, _diagonal_blocks(lower, 32), PRECISION)
    return tl.reshape(_join(inverse, tl.reshape(lower, (1, 64, 64)), PRECISION), (64, 64))

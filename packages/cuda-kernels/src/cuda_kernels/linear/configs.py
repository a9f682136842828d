"""Which kernel and which tile the linear products take: tables by shape, each with its date and measurement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Configuration of a matrix-vector kernel: weight rows a program, words of K held at once, warps."""

    block_n: int
    block_words: int
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Configuration of a tensor-core kernel: outputs and tokens a program, warps, pipeline stages."""

    block_n: int
    block_t: int
    num_warps: int
    num_stages: int


MATVEC_INT8_ROWS = 8  # up to this many rows the vector kernel reads int8 rows
MATVEC_ROWS = 1  # and floating-point rows
LIBRARY_TOKENS = 128  # from here on the dequantized matrix and cuBLAS


def matvec_strip(rows: int, words: int) -> Strip:
    """Return the strip of `rows` rows with `words` words of K."""
    block_words = min(512, 1 << (words - 1).bit_length())
    block_n = 8 if block_words <= 256 else 4
    return Strip(block_n=block_n, block_words=block_words, num_warps=1 if rows == 1 else 4)


def matmul_tile(tokens: int) -> Tile:
    """Return the tile of `tokens` tokens, floating-point or int8."""
    if tokens <= 16:
        return Tile(block_n=64, block_t=16, num_warps=4, num_stages=4)
    if tokens <= 32:
        return Tile(block_n=64, block_t=32, num_warps=4, num_stages=4)
    if tokens <= 64:
        return Tile(block_n=64, block_t=64, num_warps=4, num_stages=3)
    return Tile(block_n=128, block_t=128, num_warps=8, num_stages=3)

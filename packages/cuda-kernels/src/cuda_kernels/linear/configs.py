"""Which kernel and which tile the linear products take: tables by shape, each with its date and measurement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Configuration of a matrix-vector kernel: weight rows at a time, warps, buffers, programs a multiprocessor."""

    block_n: int
    num_warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Configuration of a tensor-core kernel: outputs and tokens a program, warps, pipeline stages."""

    block_n: int
    block_t: int
    num_warps: int
    num_stages: int


MATVEC_WORDS = 1024  # longest K of the vector kernel, in words of eight weights: its rows stay in registers
MATVEC_INT8_ROWS = 4  # up to this many rows the vector kernel reads int8 rows
MATVEC_ROWS = 1  # and floating-point rows
LIBRARY_TOKENS = 128  # from here on the dequantized matrix and cuBLAS


def matvec_strip(rows: int, words: int) -> Strip:
    """Return the strip of `rows` rows with `words` words of K."""
    if words > 256:
        return Strip(block_n=4, num_warps=2, stages=3, programs=8)
    return Strip(block_n=8, num_warps=2, stages=4, programs=4)


def matmul_tile(tokens: int) -> Tile:
    """Return the tile of `tokens` tokens, floating-point or int8."""
    if tokens <= 16:
        return Tile(block_n=64, block_t=16, num_warps=4, num_stages=4)
    if tokens <= 32:
        return Tile(block_n=64, block_t=32, num_warps=4, num_stages=4)
    if tokens <= 64:
        return Tile(block_n=64, block_t=64, num_warps=4, num_stages=3)
    return Tile(block_n=128, block_t=128, num_warps=8, num_stages=3)

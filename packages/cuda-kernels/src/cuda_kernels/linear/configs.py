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


MATVEC_INT8_ROWS = 4  # up to this many rows the vector kernel reads int8 rows
MATVEC_INT8_ROWS_NARROW = 8  # and up to this many where the outputs are too few for the tensor-core kernel
NARROW_OUTPUTS = 4096
MATVEC_ROWS = 1  # and floating-point rows


def matvec_strip(rows: int, outputs: int, words: int) -> Strip:
    """Return the strip of `rows` rows with `words` words of K.

    H200, 2026-11-30, one row, µs: [12352, 2048] 3.8 (8 rows, 1 warp; 4.8 with 2 warps), [9216, 2048] 3.1 (3.8),
    [248320, 2048] 63.2 (61.9), [2048, 4096] 2.1 (16 rows, 8 warps; 2.2 to 2.6 with others).
    """
    block_words = min(512, 1 << (words - 1).bit_length())
    if block_words > 256:
        return Strip(block_n=16 if rows == 1 else 8, block_words=block_words, num_warps=8 if rows == 1 else 4)
    return Strip(block_n=8, block_words=block_words, num_warps=1 if rows == 1 and outputs < 65536 else 2)


def matvec_float_strip(words: int) -> Strip:
    """Return the strip of one floating-point row with `words` words of K."""
    return Strip(block_n=8, block_words=min(512, 1 << (words - 1).bit_length()), num_warps=4)


JOINED_NORM_OUTPUTS = 65536  # from here on too many programs would norm the row again


def prefers_joined_norm(rows: int, outputs: int, words: int) -> bool:
    """Return whether the kernel that norms a row and multiplies it beats two kernels."""
    return rows == 1 and outputs < JOINED_NORM_OUTPUTS and words <= 512


def norm_strip(outputs: int, words: int) -> Strip:
    """Return the strip of one row that is normed first; more warps than without a norm share its work.

    One H200, 2026-12-01, a graph of all kernels of 40 layers' decode step, µs: [12352, 2048] 1,045 (32 rows, 4 warps),
    1,070 (16, 4), 1,079 (8, 2), 1,127 (8, 1); [2048, 4096] gated 1,045 (16, 8), 1,048 (16, 4), 1,057 (8, 8).
    """
    block_words = 1 << (words - 1).bit_length()
    if block_words > 256:
        return Strip(block_n=16, block_words=block_words, num_warps=8)
    return Strip(block_n=32, block_words=block_words, num_warps=4)


def prefers_vector(rows: int, outputs: int) -> bool:
    """Return whether the vector kernel beats the tensor-core kernel on int8 rows.

    H200, 2026-11-30, µs: [9216, 2048] 5.3 against 7.1 at 4 rows; [12352, 2048] 8.1 against 7.6 at 4, 11.7 against 7.7
    at 8; [2048, 4096] 4.3 against 10.7 at 4, 6.7 against 10.7 at 8.
    """
    return rows <= (MATVEC_INT8_ROWS_NARROW if outputs <= NARROW_OUTPUTS else MATVEC_INT8_ROWS)


def matmul_tile(tokens: int, outputs: int) -> Tile:
    """Return the tile of a tensor-core product: the widest that still gives the multiprocessors enough programs.

    H200, 2026-11-30, int8 rows, µs for 16, 32, 64, 128, 256, 512 tokens: 7.6, 9.3, 13.0, 15.8, 30.2, 45.4 at
    [12352, 2048]; 10.3, 11.9, 13.0, 15.3, 15.4, 21.3 at [2048, 4096].
    """
    for block_t, programs in ((128, 128), (64, 64), (32, 64)):
        if tokens > block_t // 2 and -(-outputs // 64) * -(-tokens // block_t) >= programs:
            return Tile(block_n=64, block_t=block_t, num_warps=4, num_stages=3 if block_t == 128 else 4)
    if outputs <= NARROW_OUTPUTS and tokens <= 16:
        return Tile(block_n=16, block_t=16, num_warps=2, num_stages=4)
    return Tile(block_n=64, block_t=16, num_warps=4, num_stages=4)


def prefers_library(tokens: int, outputs: int, *, int8: bool) -> bool:
    """Return whether dequantizing the matrix for cuBLAS beats the tensor-core kernel.

    H200, 2026-11-30, µs for 64, 128, 256, 512, 1,341 tokens at [12352, 2048]: library 31, 33, 37, 54, 110 (int8 rows
    cost it 3 more), ours on int8 rows 13, 16, 30, 45, 131, on bfloat16 rows 19, 23, 43, 64, 195. At [2048, 4096] the
    library needs 13 at 16 tokens and 22 at 512, ours 11 (bfloat16) and 21 (int8).
    """
    if int8:
        return tokens > 512
    return tokens > (128 if outputs > NARROW_OUTPUTS else 16)

"""Pieces shared by kernels: dependent launch, four-byte dot products, int4 words, int8 quantization of a row.

A *word* is an int32 of eight int4 weights, elements 8w … 8w + 7; `even` and `odd` are the int32 words of the two planes
of int8 activations (see int4.py), each of four elements: 8w, 8w + 2, … and 8w + 1, 8w + 3, …
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED: bool = triton.knobs.runtime.interpret

_PLAIN = tl.constexpr(INTERPRETED)  # the interpreter has no inline assembly
_SIGNS = tl.constexpr(-0x7F7F7F80)  # 0x80808080
_HIGH = tl.constexpr(-0x0F0F0F10)  # 0xF0F0F0F0
_ROUND = tl.constexpr(12582912.0)  # 1.5 · 2²³: added, it rounds to nearest even and leaves the integer in the low bits
_ROUND_BITS = tl.constexpr(0x4B400000)  # the bits of _ROUND: added to an integer below 2²², they make the sum's float
_TINY = tl.constexpr(1e-30)  # int4.TINY: keeps a group of zeros from dividing by zero


@functools.cache
def has_dependent_launch(device: torch.device) -> bool:
    """Return whether kernels on `device` launch with programmatic dependent launch (compute capability 9 and up).

    Pass it as `PDL` and as `launch_pdl`. A kernel launched so starts before the previous one has finished: it must
    call `wait_for_previous` before it touches anything that an earlier kernel wrote.
    """
    return not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait until the previous kernel's writes are visible, then let the next kernel start.

    In this order, what was written two kernels back is complete even before the wait: the previous kernel passed
    its own wait before this one could start. A previous kernel that calls `start_next` does not count for this. Such
    an early load bypasses L1 (`cache_modifier=".cg"`): what was there before may still lie in it.

    Every program waits, also one with nothing to do: else a kernel could end before the previous one, and the next
    would take its end for that of both.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def start_next(PDL: tl.constexpr):
    """Let the next kernel start although this one has not waited, so that its weights are on their way too.

    Call it before `wait_for_previous`, in a kernel whose own early loads are constants only.
    """
    if PDL:
        gdc_launch_dependents()


@triton.jit
def issue_loads(PDL: tl.constexpr):
    """Stand between loads that should all be under way at once and one load that their use needs as well.

    The assembler puts a load beside its first use to save registers, and the memory idles. But it moves no load over a
    wait for the previous kernel, and a second such wait takes no time.
    """
    if PDL:
        gdc_wait()


@triton.jit
def prefetch_share(p_bytes, nbytes, share, shares):
    """Ask the L2 for one of `shares` shares of nbytes bytes from p_bytes on, both multiples of 16; changes nothing.

    The first warp of the program asks, each thread for a part: a tensor of 32 parts would be repeated by every warp.
    """
    part = tl.cdiv(nbytes // 16, shares * 32) * 16
    start = share * 32 * part
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred some;
        .reg .b32 thread, offset, count;
        .reg .b64 address;
        mov.u32 thread, %tid.x;
        mul.lo.s32 offset, thread, $2;
        sub.s32 count, $3, offset;
        min.s32 count, count, $2;
        setp.lt.u32 some, thread, 32;
        setp.gt.and.s32 some, count, 0, some;
        cvt.s64.s32 address, offset;
        add.s64 address, address, $1;
        @some cp.async.bulk.prefetch.L2.global [address], count;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r,r",
        [(p_bytes + start).to(tl.int64), part, nbytes - start],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def split_nibbles(packed):
    """Return (even, odd): 16 times the low and the high weights of packed uint8, int8 tensors of its shape."""
    if _PLAIN:
        return ((packed << 4) ^ 0x80).to(tl.int8), ((packed & 0xF0) ^ 0x80).to(tl.int8)
    # Four bytes at a time: the compiler would take them apart.
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 low;
        shl.b32 low, $2, 4;
        lop3.b32 $0, low, 0xF0F0F0F0, 0x80808080, 0x6A;
        lop3.b32 $1, $2, 0xF0F0F0F0, 0x80808080, 0x6A;
        }
        """,
        "=&r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def dequantize_packed(packed, scale, DTYPE: tl.constexpr):
    """Return the weights (N, K) of packed (N, K / 2) uint8 in order, times scale (N,), rounded once to DTYPE."""
    N: tl.constexpr = packed.shape[0]
    K: tl.constexpr = packed.shape[1] * 2
    if not _PLAIN and scale.dtype == DTYPE and scale.dtype == tl.bfloat16:
        even, odd = _dequantize_bfloat16(packed, tl.broadcast_to(scale[:, None], packed.shape))
        return tl.reshape(tl.join(even, odd), (N, K))
    nibbles = tl.reshape(tl.join(packed & 0xF, packed >> 4), (N, K))
    return ((nibbles.to(tl.float32) - 8.0) * scale.to(tl.float32)[:, None]).to(DTYPE)


@triton.jit
def _dequantize_bfloat16(packed, scale):
    """Return (even, odd) weights times scale: 0x43 above a nibble is the bfloat16 128 + nibble, less 136 the weight."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 low, high, one, offset, zero;
        mov.b32 one, 0x3F803F80;
        mov.b32 offset, 0xC308C308;
        mov.b32 zero, 0x80008000;
        and.b32 low, $4, 0x0F0F0F0F;
        shr.u32 high, $4, 4;
        and.b32 high, high, 0x0F0F0F0F;
        prmt.b32 $0, low, 0x43, 0x4140;
        prmt.b32 $1, low, 0x43, 0x4342;
        prmt.b32 $2, high, 0x43, 0x4140;
        prmt.b32 $3, high, 0x43, 0x4342;
        fma.rn.bf16x2 $0, $0, one, offset;
        fma.rn.bf16x2 $1, $1, one, offset;
        fma.rn.bf16x2 $2, $2, one, offset;
        fma.rn.bf16x2 $3, $3, one, offset;
        fma.rn.bf16x2 $0, $0, $5, zero;
        fma.rn.bf16x2 $1, $1, $6, zero;
        fma.rn.bf16x2 $2, $2, $5, zero;
        fma.rn.bf16x2 $3, $3, $6, zero;
        }
        """,
        "=&r,=&r,=&r,=&r,r,r,r",
        [packed, scale],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def small_to_float(x):
    """Return int32 x, from -2²² to 2²², as float32: two full-rate instructions, where a conversion has a quarter."""
    return (x + _ROUND_BITS).to(tl.float32, bitcast=True) - _ROUND


@triton.jit
def dot_words(words, even, odd):
    """Return 16 · Σ weight · activation over the eight elements of each word, int32; even and odd broadcast to words.

    Five instructions: 16 · (nibble - 8) is a byte's high nibble with its sign flipped, so nothing is subtracted.
    """
    even = tl.broadcast_to(even, words.shape)
    odd = tl.broadcast_to(odd, words.shape)
    if _PLAIN:
        low, high = ((words << 4) ^ _SIGNS) & _HIGH, (words ^ _SIGNS) & _HIGH
        return _dot_bytes(low, even) + _dot_bytes(high, odd)
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 low, high;
        shl.b32 low, $1, 4;
        lop3.b32 low, low, 0xF0F0F0F0, 0x80808080, 0x6A;
        lop3.b32 high, $1, 0xF0F0F0F0, 0x80808080, 0x6A;
        dp4a.s32.s32 low, low, $2, 0;
        dp4a.s32.s32 $0, high, $3, low;
        }
        """,
        "=r,r,r,r",
        [words, even, odd],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _dot_bytes(a, b):
    """Return the dot product of the four signed bytes of a and of b, as dp4a does."""
    total = tl.zeros_like(a)
    for i in tl.static_range(4):
        total += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
    return total


@triton.jit
def dot_groups(words, even, odd, GROUP_WORDS: tl.constexpr):
    """Return Σ weight · activation over each group, (N, W / GROUP_WORDS) float32, of words (N, W).

    even, odd: (1, W) or (N, W). Exact: the sums are integers below 2²⁴.
    """
    N: tl.constexpr = words.shape[0]
    G: tl.constexpr = words.shape[1] // GROUP_WORDS
    products = tl.reshape(dot_words(words, even, odd), (N, G, GROUP_WORDS))
    return tl.sum(products, 2).to(tl.float32) * 0.0625


@triton.jit
def quantize_words(x, GROUP_WORDS: tl.constexpr):
    """Quantize x (W, 8) float32, whole groups of GROUP_WORDS words, to int8.

    Returns (even, odd) int32 words (W,) and (scale, group_sum) float32 (W / GROUP_WORDS,), as int4.quantize_activation
    does for one row.
    """
    W: tl.constexpr = x.shape[0]
    G: tl.constexpr = W // GROUP_WORDS
    SIZE: tl.constexpr = GROUP_WORDS * 8
    largest = tl.maximum(tl.max(tl.reshape(tl.abs(x), (G, SIZE)), 1), _TINY)
    inverse = tl.reshape(tl.broadcast_to((127.0 / largest)[:, None], (G, SIZE)), (W, 8))
    shifted = x * inverse + _ROUND
    scale = largest / 127.0
    group_sum = tl.sum(tl.reshape(shifted - _ROUND, (G, SIZE)), 1) * scale
    lane = tl.arange(0, 8)[None, :]
    byte = (shifted.to(tl.int32, bitcast=True) & 0xFF) << ((lane // 2) * 8)
    even = tl.sum(tl.where(lane % 2 == 0, byte, 0), 1)
    odd = tl.sum(tl.where(lane % 2 == 1, byte, 0), 1)
    return even, odd, scale, group_sum


@triton.jit
def store_quantized(
    x,
    p_values,
    p_scale,
    p_group_sum,
    row,
    first_word,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
):
    """Quantize x (W, 8) float32 and store it as words first_word … first_word + COUNT - 1 of `row`.

    p_values: int32 view of values, (T, 2, WORDS); p_scale, p_group_sum: (T, WORDS / GROUP_WORDS).
    x is padded with zeros from COUNT words to its power of two; first_word and COUNT are multiples of the group.
    """
    W: tl.constexpr = x.shape[0]
    G: tl.constexpr = W // GROUP_WORDS
    even, odd, scale, group_sum = quantize_words(x, GROUP_WORDS)
    row = row.to(tl.int64)
    o_word = tl.arange(0, W)
    o_group = tl.arange(0, G)
    p_even = p_values + row * (2 * WORDS) + first_word + o_word
    tl.store(p_even, even, mask=o_word < COUNT)
    tl.store(p_even + WORDS, odd, mask=o_word < COUNT)
    group = row * (WORDS // GROUP_WORDS) + first_word // GROUP_WORDS + o_group
    tl.store(p_scale + group, scale, mask=o_group < COUNT // GROUP_WORDS)
    tl.store(p_group_sum + group, group_sum, mask=o_group < COUNT // GROUP_WORDS)

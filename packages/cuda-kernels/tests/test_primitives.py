"""The shared kernel pieces against int4.py: dot products of words, quantization of a row."""

import pytest
import torch
import triton
import triton.language as tl
from cuda_kernels import int4, primitives
from cuda_kernels.testing import poisoned, random_int4, random_tensor


@triton.jit
def _dot_kernel(p_weight, p_values, p_out, N: tl.constexpr, W: tl.constexpr, GROUP_WORDS: tl.constexpr):
    o_word = tl.arange(0, W)
    words = tl.load(p_weight + tl.arange(0, N)[:, None] * W + o_word[None, :])
    even, odd = tl.load(p_values + o_word), tl.load(p_values + W + o_word)
    groups = primitives.dot_groups(words, even[None, :], odd[None, :], GROUP_WORDS)
    G: tl.constexpr = W // GROUP_WORDS
    tl.store(p_out + tl.arange(0, N)[:, None] * G + tl.arange(0, G)[None, :], groups)


@triton.jit
def _quantize_kernel(
    p_x, p_values, p_scale, p_sum, WORDS: tl.constexpr, BLOCK: tl.constexpr, GROUP_WORDS: tl.constexpr
):
    row = tl.program_id(0)
    o_x = tl.arange(0, BLOCK)[:, None] * 8 + tl.arange(0, 8)[None, :]
    x = tl.load(p_x + row * WORDS * 8 + o_x, mask=o_x < WORDS * 8, other=0.0)
    primitives.store_quantized(x, p_values, p_scale, p_sum, row, 0, WORDS, WORDS, GROUP_WORDS)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_dot_groups_is_exact(group_size: int, device: torch.device) -> None:
    rows, columns = 4, 256
    packed, _ = random_int4(rows, columns, group_size=group_size, device=device)
    values, _, _ = int4.quantize_activation(random_tensor(1, columns, device=device), group_size=group_size)
    out = poisoned((rows, columns // group_size), torch.float32, device)
    _dot_kernel[(1,)](
        packed.view(torch.int32), values.view(torch.int32), out, N=rows, W=columns // 8, GROUP_WORDS=group_size // 8
    )
    ones = torch.ones(1, columns // group_size, device=device)
    products = int4.unpack(packed).double() * int4.dequantize_activation(values, ones).double()
    assert torch.equal(out.double(), products.unflatten(-1, (-1, group_size)).sum(-1))


@pytest.mark.parametrize(("columns", "group_size"), [(256, 32), (192, 64), (384, 128)], ids=lambda n: str(n))
def test_store_quantized_is_quantize_activation(columns: int, group_size: int, device: torch.device) -> None:
    x = random_tensor(3, columns, device=device)
    x[1] = 0.0
    x[2, :group_size] *= 1e-3
    want = int4.quantize_activation(x, group_size=group_size)
    values, scale, group_sum = (poisoned(t.shape, t.dtype, device) for t in want)
    block = triton.next_power_of_2(columns // 8)
    _quantize_kernel[(3,)](
        x, values.view(torch.int32), scale, group_sum, WORDS=columns // 8, BLOCK=block, GROUP_WORDS=group_size // 8
    )
    # A value halfway between two integers may go to either, by one rounding of the product.
    assert int((values.int() - want[0].int()).abs().max()) <= 1
    assert (values != want[0]).float().mean() < 0.01
    torch.testing.assert_close(scale, want[1])
    torch.testing.assert_close(group_sum, want[2], rtol=1e-4, atol=2e-2 * float(want[1].max()) * group_size**0.5)

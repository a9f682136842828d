"""The int4 weight layout, and the int8 activation layout that meets it: packing, unpacking, quantizing.

Weights: `packed (..., N, K/2) uint8`, element k even in the low nibble and odd in the high nibble of byte k // 2,
offset binary (value = nibble - 8); `scales (..., N, K/group)`, one per row and group of K. group is 32, 64 or 128 and
K any multiple of it.

Activations: `values (T, 2, K/2) int8`, the even elements of a row and then the odd ones, so that the low nibbles of
consecutive weight bytes meet consecutive activations; `scale (T, K/group) float32`; `group_sum (T, K/group) float32`,
the sum of the dequantized values of a group, with which a product over raw nibbles is corrected:
sum_k (n_k - 8) a_k = sum_k n_k a_k - 8 group_sum.
"""

from typing import NamedTuple

import torch

GROUP_SIZES = (32, 64, 128)

TINY = 1e-30  # the least "largest magnitude" of a group of activations: zeros get a scale that divides


class Int8Rows(NamedTuple):
    """Quantized activations: values (T, 2, K/2) int8; scale and group_sum (T, K/group) float32."""

    values: torch.Tensor
    scale: torch.Tensor
    group_sum: torch.Tensor


def pack(values: torch.Tensor) -> torch.Tensor:
    """Pack integers in [-8, 7], `(..., K)` with even K, to `(..., K/2) uint8`."""
    nibbles = (values + 8).to(torch.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return the int8 values in [-8, 7], `(..., K)`, of `packed (..., K/2) uint8`."""
    pairs = torch.stack((packed & 0xF, packed >> 4), dim=-1)
    return pairs.flatten(-2).to(torch.int8) - 8


def dequantize(packed: torch.Tensor, scales: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights `(..., K)` in `dtype`; the product with the scale is rounded once, to `dtype`."""
    # Half the passes of `unpack`: both nibbles of a byte are spread over the two bytes of an int16 at once, the low
    # one first in memory, and the product with the scale converts.
    pairs = packed.to(torch.int16)
    values = (pairs << 4).bitwise_or_(pairs).bitwise_and_(0x0F0F).view(torch.int8).sub_(8)
    grouped = values.unflatten(-1, (scales.shape[-1], values.shape[-1] // scales.shape[-1]))
    return (grouped * scales.to(torch.float32).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_weight(
    weight: torch.Tensor, *, group_size: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `weight (..., K)` to nearest with scale = max|w| / 7 per group; return (packed, scales).

    The scale is rounded to `scale_dtype` before the values are, so that dequantization uses the very same number.
    A group of zeros gets scale 1. Raises ValueError where K is no multiple of `group_size`, or a weight is not finite.
    """
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size: expected one of {GROUP_SIZES}, got {group_size}")
    if weight.shape[-1] % group_size:
        raise ValueError(f"weight: expected a multiple of group_size {group_size} columns, got {weight.shape[-1]}")
    grouped = weight.to(torch.float32).unflatten(-1, (-1, group_size))
    largest = grouped.abs().amax(-1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("weight: expected finite values, got inf or nan")
    scales = torch.where(largest > 0, largest / 7, torch.ones_like(largest)).to(scale_dtype)
    values = (grouped / scales.to(torch.float32).unsqueeze(-1)).round().clamp(-8, 7)
    return pack(values.flatten(-2).to(torch.int8)), scales


def quantize_activation(x: torch.Tensor, *, group_size: int) -> Int8Rows:
    """Quantize `x (T, K)` per group, to nearest even with scale = max|x| / 127."""
    grouped = x.to(torch.float32).unflatten(-1, (-1, group_size))
    largest = grouped.abs().amax(-1).clamp_min(TINY)
    scale = largest / 127
    rounded = (grouped * (127 / largest).unsqueeze(-1)).round()
    values = rounded.flatten(-2).to(torch.int8).unflatten(-1, (-1, 2)).transpose(-1, -2)
    return Int8Rows(values=values.contiguous(), scale=scale, group_sum=rounded.sum(-1) * scale)


def dequantize_activation(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the activations `(T, K) float32` of `values (T, 2, K/2)` and `scale (T, K/group)`."""
    rows = values.transpose(-1, -2).flatten(-2).to(torch.float32)
    grouped = rows.unflatten(-1, (scale.shape[-1], rows.shape[-1] // scale.shape[-1]))
    return (grouped * scale.unsqueeze(-1)).flatten(-2)

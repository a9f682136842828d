"""Tensors across devices."""

import torch

from device_core.buffer import DeviceMemoryBuffer
from device_core.copy_ops import copy
from device_core.device import Device


def clone_to(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a copy of `tensor` in new memory of `device`; dtype, sizes and, where it is dense, strides are kept.

    Works in every direction, also within one device and for tensors without elements. The new memory is freed where
    the copy fails. Raises DeviceError where the machine has no such device.
    """
    # empty_like keeps the strides of dense tensors and packs the others; so does this on another device.
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    strides = torch.empty_like(shape).stride()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    nbytes = 0 if tensor.numel() == 0 else (last + 1) * tensor.itemsize
    with DeviceMemoryBuffer.create(nbytes, device) as buffer:
        clone = buffer.tensor(tensor.dtype, tensor.shape, strides)
        copy(tensor.detach(), clone)
    return clone

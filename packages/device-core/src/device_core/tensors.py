"""Tensors across devices."""

import torch

from device_core.buffer import DeviceMemoryBuffer
from device_core.copy_ops import copy
from device_core.device import Device


def empty_on(device: Device, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor in new memory of `device`, which is free when the tensor is gone."""
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    nbytes = 0 if 0 in sizes else (last + 1) * dtype.itemsize
    with DeviceMemoryBuffer.create(nbytes, device) as buffer:
        return buffer.tensor(dtype, sizes, strides)


def clone_to(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a copy of `tensor` in new memory of `device`; dtype, sizes and, where it is dense, strides are kept.

    Works in every direction, also within one device and for tensors without elements. The new memory is freed where
    the copy fails. Raises DeviceError where the machine has no such device.
    """
    # empty_like keeps the strides of dense tensors and packs the others; so does this on another device.
    strides = torch.empty_like(tensor, device="meta").stride()
    target = empty_on(device, tuple(tensor.shape), strides, tensor.dtype)
    copy(tensor.detach(), target)
    return target

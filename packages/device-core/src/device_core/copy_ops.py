"""The copy operators `device_copy::h2d` and `device_copy::d2h`, functional and out."""

import torch

from device_core.allocator import allocators
from device_core.device import HOST, Device
from device_core.errors import InputError

NAMESPACE = "device_copy"

_library: torch.library.Library | None = None


def register() -> None:
    """Register the operators under `torch.ops.device_copy`; calling it again does nothing.

    `h2d(Tensor x) -> Tensor` and `d2h(Tensor x) -> Tensor` stand for a copy while a graph is made, on whatever device:
    they return a clone. `h2d.out(Tensor x, *, Tensor(a!) out)` and `d2h.out` are what programs call: they
    resize `out` to x's sizes, then copy.
    """
    global _library
    if _library is not None:
        return
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, copy in (("h2d", h2d_out), ("d2h", d2h_out)):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, _clone, "CompositeExplicitAutograd")
        library.define(f"{name}.out(Tensor x, *, Tensor(a!) out) -> ()")
        library.impl(f"{name}.out", copy, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}.out", _fake_out, lib=library)
    _library = library


def h2d_out(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """Copy a host tensor to a device tensor.

    Raises InputError, with `out` as it was, where x is not on the host, out is, their dtypes differ, or out is not
    contiguous or cannot be resized to x's sizes. In order with the current stream; x may be changed at once.
    """
    source, target = Device.of(x), Device.of(out)
    _check("h2d", "x", source.is_host, "a tensor on the host", source)
    _check("h2d", "out", not target.is_host, "a tensor on a device", target)
    _resize("h2d", x, out)
    if x.numel():
        allocators().require(target).copy_host_to_device(out, x, target.index)


def d2h_out(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """Copy a device tensor to a host tensor; the mirror of `h2d_out`. When it returns, `out` holds the data."""
    source, target = Device.of(x), Device.of(out)
    _check("d2h", "x", not source.is_host, "a tensor on a device", source)
    _check("d2h", "out", target.is_host, "a tensor on the host", target)
    _resize("d2h", x, out)
    if x.numel():
        allocators().require(source).copy_device_to_host(out, x, source.index)


def copy(x: torch.Tensor, out: torch.Tensor) -> None:
    """Copy between equal dtypes and sizes, from any device to any other; between two devices through the host."""
    source, target = Device.of(x), Device.of(out)
    if x.numel() == 0:
        return
    if source == target:
        out.copy_(x)
    elif source.is_host:
        allocators().require(target).copy_host_to_device(out, x, target.index)
    elif target.is_host:
        allocators().require(source).copy_device_to_host(out, x, source.index)
    else:
        staged = torch.empty(x.shape, dtype=x.dtype, device=HOST.torch)
        allocators().require(source).copy_device_to_host(staged, x, source.index)
        allocators().require(target).copy_host_to_device(out, staged, target.index)


def _resize(operator: str, x: torch.Tensor, out: torch.Tensor) -> None:
    _check(operator, "out", out.dtype == x.dtype, f"dtype {x.dtype}", out.dtype)
    if out.shape == x.shape:
        return
    _check(operator, "out", out.is_contiguous(), f"sizes {tuple(x.shape)}, or contiguous memory", f"{tuple(out.shape)}")
    room = out.untyped_storage().nbytes() - out.storage_offset() * out.itemsize
    _check(operator, "out", x.nbytes <= room, f"room for {x.nbytes} bytes of sizes {tuple(x.shape)}", f"{room} bytes")
    out.resize_(x.shape)


def _check(operator: str, argument: str, condition: bool, expected: str, given: object) -> None:
    if not condition:
        raise InputError(f"{NAMESPACE}::{operator}: {argument}: expected {expected}, got {given}")


def _clone(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _fake_out(x: torch.Tensor, *, out: torch.Tensor) -> None:
    _check("copy", "out", out.dtype == x.dtype, f"dtype {x.dtype}", out.dtype)

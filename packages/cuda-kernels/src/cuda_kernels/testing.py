"""Tools for testing operators: relative error with its bounds, random inputs, poisoned outputs, `opcheck`."""

from collections.abc import Sequence
from typing import Any

import torch

from cuda_kernels import library

# Largest relative error against a float64 reference, by the arithmetic of a path.
BOUNDS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3, "int8": 2e-2}


def bound(arithmetic: torch.dtype | str) -> float:
    """Return the bound of a path: that of a floating dtype, or of "int8" for quantized activations."""
    return BOUNDS[str(arithmetic).removeprefix("torch.")]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ‖actual - expected‖ / ‖expected‖ in float64; inf where shapes differ or `actual` is not finite.

    Two zero (or empty) tensors have error 0.
    """
    if actual.shape != expected.shape or not bool(torch.isfinite(actual).all()):
        return float("inf")
    wanted = expected.to("cpu", torch.float64)
    difference = float((actual.to("cpu", torch.float64) - wanted).norm())
    norm = float(wanted.norm())
    return 0.0 if difference == 0.0 else difference / norm if norm else float("inf")


def assert_close(actual: torch.Tensor, expected: torch.Tensor, arithmetic: torch.dtype | str) -> None:
    """Raise AssertionError unless the relative error is within the bound of `arithmetic`."""
    error, limit = relative_error(actual, expected), bound(arithmetic)
    assert error <= limit, (
        f"relative error: expected at most {limit:g} ({arithmetic}), got {error:.3g}; "
        f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    )


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill `tensor` with what no kernel may leave behind (NaN, or the smallest integer) and return it."""
    return tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a new poisoned tensor, to be handed to a kernel as its output."""
    return poison(torch.empty(tuple(shape), dtype=dtype, device=device))


def random_tensor(
    *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", scale: float = 1.0
) -> torch.Tensor:
    """Return normal numbers times `scale`, drawn on the CPU so that a seed gives the same on every device."""
    return (torch.randn(*shape) * scale).to(dtype).to(device)


def random_int4(
    *shape: int, group_size: int, scale_dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random int4 weights of `shape` (..., K): packed bytes and scales, at about unit gain for K inputs."""
    *rows, columns = shape
    packed = torch.randint(0, 256, (*rows, columns // 2), dtype=torch.uint8)
    # A uniform nibble has standard deviation 4.6, so this keeps the product's rows near the size of its input.
    scales = (torch.rand(*rows, columns // group_size) + 0.5) / (4.6 * columns**0.5)
    return packed.to(device), scales.to(scale_dtype).to(device)


def check_operator(name: str, *args: Any) -> None:
    """Run torch's `opcheck` on the functional and the out form of operator `name` with arguments `args`.

    State arguments (mutated in place) are cloned first. Call it after `cuda_kernels.register()`.
    """
    packet = getattr(getattr(torch.ops, library.NAMESPACE), name)
    torch.library.opcheck(packet.default, _clone(args))
    if "out" not in packet.overloads():
        return
    schema = packet.out._schema
    results = packet.default(*_clone(args))
    results = tuple(results) if isinstance(results, tuple | list) else (results,)
    names = [argument.name for argument in schema.arguments if argument.kwarg_only and argument.alias_info is not None]
    outputs = {key: torch.empty_like(result) for key, result in zip(names, results, strict=True)}
    # Autograd is not part of an out form, which has no differentiable result.
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(packet.out, _clone(args), outputs, test_utils=tests)
    packet.out(*_clone(args), **{key: poison(output) for key, output in outputs.items()})
    for key, result in zip(names, results, strict=True):
        assert torch.equal(outputs[key], result), f"{name}: {key}: the out form differs from the functional form"


def _clone(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)

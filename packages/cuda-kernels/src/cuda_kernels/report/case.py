"""KernelCase: what a family says of each kernel configuration it ships, so that it can be compiled without a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One shipped configuration of one kernel.

    name: family, kernel and what sets this configuration apart, as `linear.matvec_int8/K2048`.
    kernel: the `@triton.jit` function.
    signature: type of each argument that is no constexpr: "*bf16", "*fp32", "*i8", "*i32", "*u8", "i32", "fp32".
    constexprs: value of each constexpr argument; a pointer argument given None is passed here too.
        PDL may be left out: it is on from compute capability 9.
    aligned: arguments that are multiples of 16 whenever the operator launches the kernel (pointers count in bytes).
        None: all pointers.
    registers: most registers a thread, where the launch limits them (`maxnreg`).
    targets: compute capabilities that the configuration ships for.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    aligned: Sequence[str] | None = None
    registers: int | None = None
    targets: Sequence[int] = (80, 90, 120)

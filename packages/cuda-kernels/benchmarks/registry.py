"""What a benchmark is, and the list of all of them: one file an operator family beside this one."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# One H200: one-way reads, and bfloat16 products on random data.
BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 763e12

FAMILIES = ("attention", "gated_delta_rule", "linear", "moe", "norm", "sampling", "sort")

Call = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operator at one shape, ready to run on the GPU.

    ours: takes the index of a copy of the weights, in [0, copies), launches and returns its result (a tensor, or a
        tuple whose first tensor is compared).
    expected: returns the float64 or float32 result for copy 0.
    bound: largest relative error of ours, and of the competitors.
    copies: sets of weights that rotate, so that the L2 does not serve them (`timing.copies_past_l2`).
    nbytes: bytes that must be read and written; flops: additions and multiplications. They give the floor.
    competitors: the same work done by others; one that runs out of memory is reported so.
    """

    ours: Call
    expected: Callable[[], torch.Tensor]
    bound: float
    copies: int
    nbytes: int
    flops: float = 0.0
    competitors: Mapping[str, Call] = field(default_factory=dict)

    @property
    def floor_us(self) -> float:
        """Return the time that no kernel can beat, in microseconds."""
        return max(self.nbytes / BYTES_PER_SECOND, self.flops / FLOPS_PER_SECOND) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """An operator and the shapes at which it is measured.

    shapes: label of each shape (`T1-N12352-K2048`) and the keyword arguments that `build` takes for it.
    build: returns the work at a shape; allocates, so it runs just before the measurement.
    """

    name: str
    shapes: Mapping[str, Mapping[str, Any]]
    build: Callable[..., Work]


def all_benchmarks() -> list[Benchmark]:
    """Return the BENCHMARKS of every family file."""
    return [benchmark for family in FAMILIES for benchmark in importlib.import_module(family).BENCHMARKS]

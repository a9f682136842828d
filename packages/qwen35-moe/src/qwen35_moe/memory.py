"""What a program will occupy on its device, known from `program.json` alone and checked before a byte goes there."""

import math
from dataclasses import dataclass

import torch
from device_core import Device
from device_core.schema import types as t

from qwen35_moe.errors import MemoryPlanError

# Left for what operators allocate while they run: split sums of attention, sorted rows of the experts.
_WORKSPACE_NBYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of one program on one device, once for all its methods.

    weights: the constants. state: caches and recurrent state of one session. scratch: intermediate results, shared by
    the methods. io: outputs that survive other methods. nbytes_free: what the device has left, None where unknown.
    """

    device: Device
    weights: int
    state: int
    scratch: int
    io: int
    nbytes_free: int | None

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.weights + self.state + self.scratch + self.io

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_amount(getattr(self, name))}" for name in ("weights", "state", "scratch", "io"))
        left = "" if self.nbytes_free is None else f"; free {_amount(self.nbytes_free)}"
        return f"memory on {self.device}: {parts}; total {_amount(self.total)}{left}"


def plan_memory(program: t.Program, device: Device, *, nbytes_free: int | None = None) -> MemoryPlan:
    """Add up what `program` needs on `device`."""
    here = str(device)
    read = {
        value.storage.name
        for method in program.methods
        for value in method.values
        if isinstance(value, t.TensorValue) and isinstance(value.storage, t.Constant) and value.device == here
    }
    buffers = [[buffer for buffer in method.buffers if buffer.device == here] for method in program.methods]
    return MemoryPlan(
        device=device,
        weights=sum(_nbytes(program.constants[name]) for name in read),
        state=sum(_nbytes(state) for state in program.state.values() if state.device == here),
        scratch=max((sum(b.nbytes for b in of if b.kind == "scratch") for of in buffers), default=0),
        io=sum(b.nbytes for of in buffers for b in of if b.kind == "io"),
        nbytes_free=nbytes_free,
    )


def check_memory(plan: MemoryPlan) -> None:
    """Raise MemoryPlanError, with the numbers, where `plan` and the operators' workspace exceed what is free."""
    if plan.nbytes_free is not None and plan.total + _WORKSPACE_NBYTES > plan.nbytes_free:
        needed, workspace = plan.total + _WORKSPACE_NBYTES, _amount(_WORKSPACE_NBYTES)
        raise MemoryPlanError(
            f"the program does not fit: it needs {_amount(needed)} (with {workspace} for its operators), "
            f"{_amount(plan.nbytes_free)} are free; {plan}"
        )


def nbytes_free(device: Device) -> int | None:
    """Return the free bytes of a CUDA device, None for the host, whose memory the system extends."""
    return None if device.is_host else int(torch.cuda.mem_get_info(device.index)[0])


def _nbytes(spec: t.ConstantSpec | t.StateSpec) -> int:
    bits = torch.empty((), dtype=getattr(torch, spec.dtype)).itemsize
    return math.prod(spec.sizes) * bits


def _amount(nbytes: int) -> str:
    return f"{nbytes / 1024**3:.2f} GiB" if nbytes >= 1024**3 // 10 else f"{nbytes / 1024**2:.2f} MiB"

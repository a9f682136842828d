"""The constants and states that the methods of a program use, with the tensors behind them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from device_core.schema.dtypes import NAMES
from device_core.schema.types import ConstantSpec, StateSpec
from torch.fx import Node

from export_passes.method_graph import ProgramGraph, root_of, source_of, spec_of
from export_passes.shared_tensors import has_bytes


@dataclass(slots=True, kw_only=True)
class ConstantTable:
    """Specs by name, and the tensors of the constants as they are to be stored."""

    constants: dict[str, ConstantSpec] = field(default_factory=dict)
    state: dict[str, StateSpec] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def collect_constants(program: ProgramGraph, tensors: Iterable[Node]) -> ConstantTable:
    """Declare the constants and states behind `tensors`, the tensor values of all methods."""
    table = ConstantTable()
    for node in dict.fromkeys(root_of(tensor) for tensor in tensors):
        source = source_of(node)
        if source is None or source.kind == "input":
            continue
        tensor = program.tensors[source.name].detach()
        if source.kind == "constant":
            _add(table, source.name, tensor if spec_of(node).is_contiguous else _in_memory_order(tensor))
        else:
            initial = source.name if has_bytes(tensor) and bool(torch.count_nonzero(tensor)) else None
            if initial is not None:
                _add(table, initial, tensor)
            table.state[source.name] = StateSpec(
                dtype=NAMES[tensor.dtype], sizes=tuple(tensor.shape), device=str(spec_of(node).device), initial=initial
            )
    return table


def _add(table: ConstantTable, name: str, tensor: torch.Tensor) -> None:
    table.tensors[name] = tensor
    table.constants[name] = ConstantSpec(dtype=NAMES[tensor.dtype], sizes=tuple(tensor.shape))


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor with permuted strides or gaps as they lie in memory; its values keep strides."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,)) if tensor.numel() else tensor.reshape(-1)

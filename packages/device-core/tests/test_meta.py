"""What is known of a method without its weights."""

from collections.abc import Callable
from pathlib import Path

import torch
from device_core import (
    HOST,
    Device,
    MethodMeta,
    read_program,
)

Folder = Callable[..., Path]


CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_meta_tells_devices_and_memory(several_devices: Path) -> None:
    program = read_program(several_devices)
    meta = MethodMeta.of(program.methods[0])
    assert [(str(b.device), b.nbytes, b.kind) for b in meta.buffers] == [
        ("cuda:0", 16, "scratch"),
        ("cpu", 16, "scratch"),
        ("cuda:1", 16, "scratch"),
        ("cpu", 16, "io"),
    ]
    (x,), (out,) = meta.inputs, meta.outputs
    assert (x.name, x.kind, x.dtype, x.sizes, x.device, x.nbytes, x.supplied) == (
        "x", "tensor", "float32", (4,), HOST, 16, True,
    )  # fmt: skip
    assert not out.supplied
    assert meta.instruction_count == 7
    assert meta.operators[0] == "device_copy::h2d.out"
    assert not meta.uses_backend("x")


def test_meta_of_dynamic_methods(stateful: Folder) -> None:
    meta = MethodMeta.of(read_program(stateful("cuda:3")).methods[1])
    assert meta.inputs[0].sizes == ("s0", 4)
    assert meta.inputs[0].nbytes == 8 * 16
    assert str(meta.outputs[0].device) == "cuda:3"
    assert [(s.name, s.min, s.max) for s in meta.symbols] == [("s0", 1, 8)]
    assert meta.constants == ("weight",)

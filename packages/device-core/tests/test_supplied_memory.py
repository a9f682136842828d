"""Memory that the caller supplies for outputs: what it may overlap."""

from pathlib import Path

import pytest
import torch
from device_core import Device, InputError, Module, clone_to
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

DEVICES = [pytest.param(Device.parse(name), id=name) for name in ("cpu", "cuda:1")]


def program(folder: Path, device: Device) -> Path:
    """Write `p, q, r = -x, -y, -x` over columns of four; the caller supplies memory for `p` and `q`."""
    method = MethodBuilder("f", symbols={"s0": (0, 1)})
    sizes, where = (4, "s0"), str(device)
    x, y = (method.input(name, "float32", sizes, device=where) for name in "xy")
    p, q = (method.supplied(name, "float32", sizes, device=where) for name in "pq")
    r = method.planned("r", "float32", sizes, device=where, kind="io")
    for source, target in ((x, p), (y, q), (x, r)):
        method.call("aten::neg.out", source, out=target)
    write_program(folder, [method.build([p, q, r])])
    return folder


def columns(memory: torch.Tensor, *starts: int) -> list[torch.Tensor]:
    return [memory[start : start + 4].view(4, 1) for start in starts]


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_are_apart(recording: RecordingDevice, tmp_path: Path, device: Device) -> None:
    with Module.load(program(tmp_path / "p", device)) as module:
        x, y, p, q = columns(clone_to(torch.arange(16.0), device), 4, 12, 8, 0)
        outputs = module.execute("f", [x, y], outputs=[p, q])
        assert outputs[0] is p
        assert outputs[1] is q
        expected = -torch.arange(16.0).view(4, 4)[[1, 3, 1]].unsqueeze(2)
        assert torch.equal(torch.stack([clone_to(output, Device.parse("cpu")) for output in outputs]), expected)


CASES = [
    ("same-as-input", (0, 4, 0, 8), r"output 0 \(p\): .* overlaps input 0 \(x\)$"),
    ("last-of-input", (0, 20, 3, 8), r"output 0 \(p\): .* overlaps input 0 \(x\)$"),
    ("first-of-input", (11, 4, 16, 8), r"output 1 \(q\): .* overlaps input 0 \(x\)$"),
    ("between-inputs", (0, 4, 2, 8), r"output 0 \(p\): .* overlaps input 0 \(x\), input 1 \(y\)$"),
    ("same-as-output", (0, 4, 8, 8), r"output 0 \(p\): .* overlaps output 1 \(q\)$"),
    ("last-of-output", (0, 4, 11, 8), r"output 0 \(p\): .* overlaps output 1 \(q\)$"),
]


@pytest.mark.parametrize(("starts", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("device", DEVICES)
def test_overlap_is_refused(
    recording: RecordingDevice, tmp_path: Path, device: Device, starts: tuple[int, ...], message: str
) -> None:
    with Module.load(program(tmp_path / "p", device)) as module:
        memory = clone_to(torch.arange(24.0), device)
        x, y, p, q = columns(memory, *starts)
        with pytest.raises(InputError, match=r"f: memory for " + message):
            module.execute("f", [x, y], outputs=[p, q])
        assert torch.equal(clone_to(memory, Device.parse("cpu")), torch.arange(24.0))


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_overlaps_a_tensor_without_bytes(recording: RecordingDevice, tmp_path: Path, device: Device) -> None:
    with Module.load(program(tmp_path / "p", device)) as module:
        empty = clone_to(torch.empty(4, 0), device)
        outputs = module.execute("f", [empty, empty], outputs=[empty, empty])
        assert [tuple(output.shape) for output in outputs] == [(4, 0)] * 3
        assert module.execute("f", [empty, empty], outputs=[outputs[2], empty])[0] is outputs[2]


def test_planned_output_of_the_method_is_no_memory_for_others(tmp_path: Path) -> None:
    with Module.load(program(tmp_path / "p", Device.parse("cpu"))) as module:
        x, y, p, q = columns(torch.arange(16.0), 0, 4, 8, 12)
        planned = module.execute("f", [x, y], outputs=[p, q])[2]
        with pytest.raises(InputError, match=r"output 1 \(q\): .* overlaps planned memory of the method$"):
            module.execute("f", [x, y], outputs=[p, planned])


def test_gaps_belong_to_a_tensor_but_what_follows_it_does_not(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (4,))
    out = method.value(
        t.TensorValue(name="out", dtype="float32", sizes=(4,), strides=(2,), storage=t.Bound(value=x + 1))
    )
    method.call("aten::neg.out", x, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    memory = torch.arange(12.0)
    with Module.load(tmp_path / "p") as module:
        with pytest.raises(InputError, match=r"overlaps input 0 \(x\)"):
            module.execute("f", [memory[6:10]], outputs=[memory[:8:2]])
        (given,) = module.execute("f", [memory[7:11]], outputs=[memory[:8:2]])
        assert torch.equal(given, -torch.arange(7.0, 11.0))

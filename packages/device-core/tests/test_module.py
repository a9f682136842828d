"""Modules on the host: loading, closing, memory over time."""

import gc
import resource
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    ClosedError,
    Device,
    DeviceError,
    InputError,
    MissingOperatorError,
    Module,
    OutOfMemoryError,
    clone_to,
)
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

Folder = Callable[..., Path]


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_unknown_method_lists_the_known_ones(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        assert module.method_names == ("step", "rows")
        for call in (module.execute, module.method_meta):
            with pytest.raises(InputError, match="step, rows, got 'prefill'"):
                call("prefill")


def test_all_missing_operators_are_listed(tmp_path: Path) -> None:
    methods = []
    for name in ("f", "g"):
        method = MethodBuilder(name)
        x = method.input("x", "float32", (1,))
        for operator in (f"nowhere::{name}.out", "aten::add.nothing", "aten::neg.out", "aten::nonsense"):
            method.call(operator, x)
        methods.append(method.build([]))
    write_program(tmp_path / "p", methods)
    with pytest.raises(MissingOperatorError) as caught:
        Module.load(tmp_path / "p")
    problems = caught.value.problems
    assert [p.split()[1] for p in problems] == [
        "nowhere::f.out",
        "aten::add.nothing",
        "aten::nonsense",
        "nowhere::g.out",
    ]
    assert "method f, g" in problems[1]


def test_missing_device_is_said_before_anything_is_loaded(stateful: Folder) -> None:
    if torch.cuda.device_count() > 7:
        pytest.skip("this machine has a device cuda:7")
    folder = stateful("cuda:7")
    with pytest.raises(DeviceError, match="cuda:7"):
        Module.load(folder)
    with Module.load(folder, device=Device.parse("cpu")) as module:
        assert torch.equal(module.execute("step", [torch.ones(4)])[0], (torch.arange(4.0) + 1) * WEIGHT)


def test_memory_that_the_host_lacks(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    method.planned("huge", "uint8", (2**45,))
    write_program(tmp_path / "p", [method.build([])])
    with pytest.raises(OutOfMemoryError, match=f"cpu: asked for {2**45:,} bytes, free: "):
        Module.load(tmp_path / "p")


def test_closed_means_closed(stateful: Folder) -> None:
    module = Module.load(stateful())
    session = module.new_session()
    (out,) = session.execute("step", [torch.ones(4)])
    expected = out.clone()
    module.close()
    module.close()
    assert torch.equal(out, expected)
    for call in (session.execute, module.execute):
        with pytest.raises(ClosedError):
            call("step", [torch.ones(4)])
    with pytest.raises(ClosedError):
        session.reset()
    with pytest.raises(ClosedError):
        module.new_session()


def use_and_close(folder: Path, device: Device) -> list[weakref.ref[object]]:
    """Return references to a module, its sessions and their outputs."""
    with Module.load(folder) as module, module.new_session() as other:
        x = clone_to(torch.ones(4), device)
        sessions = (module.default_session, other)
        outputs = [session.execute("step", [x])[0] for session in sessions]
        return [weakref.ref(made) for made in (module, *sessions, *outputs)]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.usefixtures("no_collector")
def test_what_is_closed_is_freed_at_once(recording: RecordingDevice, stateful: Folder, device: str) -> None:
    references = use_and_close(stateful(device), Device.parse(device))
    assert [reference() for reference in references] == [None] * 5


def resident_nbytes() -> int:
    """Return the memory of this process; Linux only, as the promise is tested there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_ten_thousand_executions_leave_memory_flat(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        x, y = torch.ones(4), torch.ones(3, 4)
        for _ in range(500):
            module.execute("step", [x])
            module.execute("rows", [y])
        gc.collect()
        objects, before = len(gc.get_objects()), resident_nbytes()
        for _ in range(10_000):
            module.execute("step", [x])
            module.execute("rows", [y])
        gc.collect()
        assert resident_nbytes() - before < 2 * 2**20
        assert abs(len(gc.get_objects()) - objects) < 100


def test_a_hundred_loads_leave_memory_flat(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (1 << 18,))
    weight = method.constant("weight", "float32", (1 << 18,))
    state = method.state("state", "float32", (1 << 18,))
    out = method.planned("out", "float32", (1 << 18,), kind="io")
    method.call("aten::add.out", x, weight, out=out)
    method.call("aten::add_.Tensor", state, out, writes=(state,))
    spec = t.StateSpec(dtype="float32", sizes=(1 << 18,))
    write_program(
        tmp_path / "p", [method.build([out])], constants={"weight": torch.ones(1 << 18)}, state={"state": spec}
    )
    x_1 = torch.ones(1 << 18)
    before = 0
    for i in range(110):
        with Module.load(tmp_path / "p") as module:
            module.execute("f", [x_1])
        if i == 9:
            gc.collect()
            before = resident_nbytes()
    assert resident_nbytes() - before < 4 * 2**20

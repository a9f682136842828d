"""Programs on fake devices: transfers, current device, moving to other devices."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from device_core import (
    HOST,
    Device,
    DeviceError,
    InputError,
    Module,
    clone_to,
    read_program,
)
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

Folder = Callable[..., Path]


CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_constants_are_uploaded_once(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cuda:1")) as module:
        assert [(x.index, x.nbytes) for x in recording.transfers] == [(1, 16)]
        assert module.uploaded_nbytes == 16
        recording.forget()
        sessions = [module.new_session() for _ in range(3)]
        # The initial state of each session, never the weight again.
        assert recording.transferred("h2d") == (3, 48)
        for session in sessions:
            session.execute("step", [clone_to(torch.ones(4), CUDA1)])
            session.execute("rows", [clone_to(torch.ones(2, 4), CUDA1)])
        assert recording.transferred("d2h") == (0, 0)


def test_results_equal_the_host(recording: RecordingDevice, stateful: Folder) -> None:
    folder = stateful("cuda:0")
    with Module.load(folder) as module, Module.load(folder, device=HOST) as on_host:
        for rows in (1, 5, 8, 5):
            x = torch.randn(rows, 4)
            (out,) = module.execute("rows", [clone_to(x, CUDA0)])
            assert torch.equal(clone_to(out, HOST), on_host.execute("rows", [x])[0])
            (out,) = module.execute("step", [clone_to(x[0], CUDA0)])
            assert torch.equal(clone_to(out, HOST), on_host.execute("step", [x[0]])[0])


def test_inputs_must_be_on_their_device(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cuda:1")) as module:
        for x, given in [(torch.ones(4), "cpu"), (clone_to(torch.ones(4), CUDA0), "cuda:0")]:
            with pytest.raises(InputError, match=f"expected a tensor on cuda:1, got one on {given}"):
                module.execute("step", [x])


def token_program(folder: Path) -> Path:
    """Write `decode` and `sample` whose tensors all stay on the device."""
    methods = []
    for name in ("decode", "sample"):
        method = MethodBuilder(name)
        x = method.input("x", "int64", (1,), device="cuda:0")
        weight = method.constant("weight", "int64", (1,), device="cuda:0")
        cache = method.state("cache", "int64", (1,), device="cuda:0")
        out = method.planned("out", "int64", (1,), device="cuda:0", kind="io")
        method.call("aten::add.out", x, weight, out=out)
        method.call("aten::add_.Tensor", cache, x, writes=(cache,))
        methods.append(method.build([out]))
    state = {"cache": t.StateSpec(dtype="int64", sizes=(1,), device="cuda:0")}
    write_program(folder, methods, constants={"weight": torch.ones(1, dtype=torch.int64)}, state=state)
    return folder


@pytest.mark.parametrize("steps", [1, 50], ids="steps{}".format)
def test_transfers_of_a_decode_loop(recording: RecordingDevice, tmp_path: Path, steps: int) -> None:
    with Module.load(token_program(tmp_path / "p")) as module, module.new_session() as session:
        tokens = clone_to(torch.zeros(1, dtype=torch.int64), CUDA0)
        recording.forget()
        for i in range(steps):
            (logits,) = session.execute("decode", [tokens])
            (tokens,) = session.execute("sample", [logits])
            assert clone_to(tokens, HOST).item() == 2 * (i + 1)
        assert recording.transferred("h2d") == (0, 0)
        assert recording.transferred("d2h") == (steps, 8 * steps)
        assert recording.allocations == 0


def test_calls_run_under_the_device_of_their_tensors(recording: RecordingDevice, several_devices: Path) -> None:
    with Module.load(several_devices) as module:
        recording.forget()
        assert module.execute("through", [torch.ones(4)])[0].tolist() == [1.0] * 4
        runs = {(run.operator, run.index, run.current) for run in recording.operators}
        assert {run for run in runs if run[0] in ("aten::neg", "aten::exp")} == {
            ("aten::neg", 0, 0),
            ("aten::exp", 1, 1),
        }
        assert recording.current == 0


def test_programs_over_several_devices_are_not_moved(recording: RecordingDevice, several_devices: Path) -> None:
    with pytest.raises(DeviceError, match="cuda:0, cuda:1"):
        Module.load(several_devices, device=HOST)


def test_copies_become_clones_on_the_host(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (4,))
    there = method.planned("there", "float32", (4,), device="cuda:0")
    out = method.planned("out", "float32", (4,), kind="io")
    method.call("device_copy::h2d.out", x, out=there)
    method.call("device_copy::d2h.out", there, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p", device=HOST) as module:
        assert module.execute("f", [torch.ones(4)])[0].tolist() == [1.0] * 4
        assert {b.device for m in module.program.methods for b in m.buffers} == {"cpu"}


def test_program_moves_to_another_index(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cuda:0"), device=CUDA1) as module:
        assert recording.live_nbytes(0) == 0
        (out,) = module.execute("step", [clone_to(torch.ones(4), CUDA1)])
        assert str(Device.of(out)) == "cuda:1"


def test_state_on_a_device_starts_as_its_constant(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module, module.new_session() as session:
        assert torch.equal(clone_to(session.state["total"], HOST), torch.arange(4.0))
        session.execute("step", [clone_to(torch.ones(4), CUDA0)])
        session.reset()
        assert torch.equal(clone_to(session.state["total"], HOST), torch.arange(4.0))


def test_uninitialized_memory_shows(recording: RecordingDevice, tmp_path: Path) -> None:
    method = MethodBuilder("f")
    never = method.planned("never", "float32", (4,), device="cuda:0")
    out = method.planned("out", "float32", (4,), device="cuda:0", kind="io")
    method.call("aten::neg.out", never, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module:
        assert clone_to(module.execute("f")[0], HOST).isnan().all()


def test_planned_inputs_are_copied_in(recording: RecordingDevice, stateful: Folder) -> None:
    folder = stateful("cuda:0")
    program = read_program(folder)
    step = program.methods[0]
    assert isinstance(step.values[0], t.TensorValue)
    x = msgspec.structs.replace(step.values[0], storage=t.Planned(buffer=1))
    buffers = (*step.buffers, t.PlannedBuffer(nbytes=16, device="cuda:0", kind="io"))
    step = msgspec.structs.replace(step, values=(x, *step.values[1:]), buffers=buffers)
    changed = msgspec.structs.replace(program, methods=(step,))
    with Module(changed, folder) as module:
        (out,) = module.execute("step", [clone_to(torch.ones(4), CUDA0)])
        assert torch.equal(clone_to(out, HOST), (torch.arange(4.0) + 1) * WEIGHT)

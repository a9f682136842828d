"""Programs on fake devices: transfers, sharing, current device, memory, failures while loading."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from device_core import (
    BACKENDS,
    HOST,
    Backend,
    CaptureError,
    Device,
    DeviceError,
    InputError,
    MemoryManager,
    MethodMeta,
    MissingOperatorError,
    Module,
    OutOfMemoryError,
    ProgramError,
    Region,
    Session,
    clone_to,
    read_program,
)
from device_core.runtime.backends import Argument
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


def several_devices(folder: Path) -> Path:
    """Write a method that goes from the host over both devices and back."""
    method = MethodBuilder("through")
    x = method.input("x", "float32", (4,))
    on_0 = method.planned("on_0", "float32", (4,), device="cuda:0")
    between = method.planned("between", "float32", (4,))
    on_1 = method.planned("on_1", "float32", (4,), device="cuda:1")
    out = method.planned("out", "float32", (4,), kind="io")
    method.call("device_copy::h2d.out", x, out=on_0)
    method.call("aten::neg.out", on_0, out=on_0)
    method.call("device_copy::d2h.out", on_0, out=between)
    method.call("aten::add.out", between, x, out=between)
    method.call("device_copy::h2d.out", between, out=on_1)
    method.call("aten::exp.out", on_1, out=on_1)
    method.call("device_copy::d2h.out", on_1, out=out)
    write_program(folder, [method.build([out])])
    return folder


def test_calls_run_under_the_device_of_their_tensors(recording: RecordingDevice, tmp_path: Path) -> None:
    with Module.load(several_devices(tmp_path / "p")) as module:
        recording.forget()
        assert module.execute("through", [torch.ones(4)])[0].tolist() == [1.0] * 4
        runs = {(run.operator, run.index, run.current) for run in recording.operators}
        assert {run for run in runs if run[0] in ("aten::neg", "aten::exp")} == {
            ("aten::neg", 0, 0),
            ("aten::exp", 1, 1),
        }
        assert recording.current == 0


def test_programs_over_several_devices_are_not_moved(recording: RecordingDevice, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cuda:0, cuda:1"):
        Module.load(several_devices(tmp_path / "p"), device=HOST)


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


def test_meta_tells_devices_and_memory(tmp_path: Path) -> None:
    program = read_program(several_devices(tmp_path / "p"))
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


def planned(*buffers: tuple[int, str, t.BufferKind], name: str = "f") -> t.Method:
    made = tuple(t.PlannedBuffer(nbytes=n, device=device, kind=kind) for n, device, kind in buffers)
    return t.Method(name=name, values=(), inputs=(), outputs=(), buffers=made, instructions=())


def test_scratch_is_shared_and_io_is_not(recording: RecordingDevice) -> None:
    methods = [
        planned((100, "cuda:0", "io"), (500, "cuda:0", "scratch"), (8, "cuda:1", "scratch"), name="f"),
        planned((700, "cuda:0", "scratch"), (30, "cuda:0", "scratch"), (50, "cuda:0", "io"), name="g"),
        planned(name="h"),
    ]
    with MemoryManager(methods) as memory:
        f, g = memory.planned("f"), memory.planned("g")
        assert f[1] is g[0]
        assert f[1].nbytes == 700
        assert len({id(b) for b in (*f, *g)}) == 5
        assert memory.nbytes == 700 + 30 + 8 + 100 + 50 == recording.live_nbytes()
        assert memory.devices == {CUDA0, CUDA1}
        assert memory.planned("h") == ()


def test_host_programs_ask_no_device(recording: RecordingDevice, stateful: Folder) -> None:
    with Module.load(stateful("cpu")) as module:
        module.execute("step", [torch.ones(4)])
    assert recording.allocations == 0


@pytest.mark.parametrize("capacity", range(0, 400, 16), ids="capacity{}".format)
def test_failed_loads_free_everything(stateful: Folder, capacity: int) -> None:
    with RecordingDevice(capacity_nbytes=capacity) as device:
        try:
            with Module.load(stateful("cuda:0")) as module:
                module.new_session()
        except OutOfMemoryError:
            assert capacity < 16 + 128 + 128 + 16 + 16
        assert device.live_nbytes() == 0


class Negate(Backend):
    """A backend whose regions negate; payload `bad` fails to load."""

    def __init__(self) -> None:
        self.closed = 0

    @property
    def name(self) -> str:
        return "negate"

    def load(self, payload: bytes, device: Device) -> Region:
        if payload == b"bad":
            raise ProgramError("negate", ["its payload is bad"])
        return NegateRegion(self)


class NegateRegion(Region):
    def __init__(self, backend: Negate) -> None:
        self._backend = backend

    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor]) -> None:
        for x, out in zip(inputs, outputs, strict=True):
            assert isinstance(x, torch.Tensor)
            torch.ops.aten.neg.out(x, out=out)

    def close(self) -> None:
        self._backend.closed += 1


def region_program(folder: Path, *payloads: bytes) -> Path:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (4,), device="cuda:0")
    out = method.planned("out", "float32", (4,), device="cuda:0", kind="io")
    for i in range(len(payloads)):
        region = t.Delegate(backend="negate", key=f"k{i}", region=f"r{i}", device="cuda:0")
        method.delegate(region, [x if i == 0 else out], [out])
    write_program(folder, [method.build([out])], delegates={f"k{i}": p for i, p in enumerate(payloads)})
    return folder


def test_regions_run_and_are_closed(recording: RecordingDevice, tmp_path: Path) -> None:
    backend = Negate()
    with BACKENDS.added(backend), Module.load(region_program(tmp_path / "p", b"1", b"2", b"3")) as module:
        (out,) = module.execute("f", [clone_to(WEIGHT, CUDA0)])
        assert torch.equal(clone_to(out, HOST), -WEIGHT)
        assert module.method_meta("f").uses_backend("negate")
    assert backend.closed == 3
    assert BACKENDS.get("negate") is None


def test_failing_region_closes_the_others(recording: RecordingDevice, tmp_path: Path) -> None:
    backend = Negate()
    folder = region_program(tmp_path / "p", b"1", b"bad", b"3")
    with BACKENDS.added(backend), pytest.raises(ProgramError, match="payload is bad"):
        Module.load(folder)
    assert backend.closed == 1
    assert recording.live_nbytes() == 0


def test_missing_backend_and_damaged_payload(recording: RecordingDevice, tmp_path: Path) -> None:
    folder = region_program(tmp_path / "p", b"1")
    with pytest.raises(MissingOperatorError, match="backend 'negate' is not registered"):
        Module.load(folder)
    (folder / "delegates" / "k0").write_bytes(b"2")
    with BACKENDS.added(Negate()), pytest.raises(ProgramError, match="SHA-256"):
        Module.load(folder)


def test_regions_are_not_moved_to_the_host(recording: RecordingDevice, tmp_path: Path) -> None:
    with BACKENDS.added(Negate()), pytest.raises(DeviceError, match="compiled for cuda:0"):
        Module.load(region_program(tmp_path / "p", b"1"), device=HOST)


CAPTURES: dict[str, Callable[[Session], object]] = {
    "method": lambda session: session.capture("step"),
    "function": lambda session: session.capture_function(lambda live: live.execute("step", [torch.ones(4)])),
}


@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES.keys())
@pytest.mark.parametrize(
    ("device", "message"), [("cpu", "runs on the host"), ("cuda:0", "only plays a device")], ids=["host", "fake"]
)
def test_capture_without_cuda_is_refused(
    recording: RecordingDevice,
    stateful: Folder,
    capture: Callable[[Session], object],
    device: str,
    message: str,
) -> None:
    with Module.load(stateful(device)) as module, pytest.raises(CaptureError, match=message):
        capture(module.default_session)


def test_what_cannot_be_captured_is_listed(recording: RecordingDevice, tmp_path: Path) -> None:
    refused = pytest.raises(CaptureError)
    with Module.load(several_devices(tmp_path / "p")) as module, module.default_session.recording(), refused as caught:
        module.execute("through", [torch.ones(4)])
    assert "instruction 0: device_copy::h2d.out: copies between host and device" in str(caught.value)
    assert "instruction 3: aten::add.out: runs on the host" in str(caught.value)


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

"""Programs and CUDA graphs on a real device."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    HOST,
    CaptureCache,
    CaptureError,
    ClosedError,
    Device,
    Module,
    Session,
)
from device_core.schema import types as t
from device_core.testing import MethodBuilder, write_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


CUDA = Device.parse("cuda:0")


Folder = Callable[[str], Path]


def test_device_equals_host(stateful: Folder) -> None:
    folder = stateful("cuda:0")
    with Module.load(folder) as module, Module.load(folder, device=HOST) as on_host:
        assert module.uploaded_nbytes == 16  # the weight; the start of the state is no value of a method
        for _ in range(5):
            x = torch.randn(4)
            (out,) = module.execute("step", [x.cuda()])
            (expected,) = on_host.execute("step", [x])
            torch.testing.assert_close(out.cpu(), expected)
        for rows in range(1, 9):
            x = torch.randn(rows, 4)
            (out,) = module.execute("rows", [x.cuda()])
            torch.testing.assert_close(out.cpu(), on_host.execute("rows", [x])[0])


@pytest.mark.usefixtures("no_collector")
def test_loading_again_and_again_leaves_memory_flat(stateful: Folder) -> None:
    folder = stateful("cuda:0")
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        with Module.load(folder) as module:
            module.execute("step", [torch.ones(4, device="cuda")])
            module.default_session.capture("step").replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.usefixtures("no_collector")
def test_ten_thousand_executions_leave_memory_flat(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        x = torch.ones(4, device="cuda")
        module.execute("step", [x])
        before = torch.cuda.memory_allocated()
        for _ in range(10_000):
            module.execute("step", [x])
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before


def test_capture_leaves_state_alone_and_replays_like_eager(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        eager, live = module.new_session(), module.new_session()
        for session in (eager, live):
            session.execute("step", [torch.full((4,), 0.3, device="cuda")])
        before = live.state["total"].clone()
        captured = live.capture("step")
        assert torch.equal(live.state["total"], before)
        for i in range(512):
            x = torch.randn(4, device="cuda") * i
            (expected,) = (out.clone() for out in eager.execute("step", [x]))
            captured.inputs[0].copy_(x)
            captured.replay()
            assert torch.equal(captured.outputs[0], expected)
        assert torch.equal(live.state["total"], eager.state["total"])


def test_capture_starts_from_examples(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        x = torch.randn(5, 4, device="cuda")
        captured = module.default_session.capture("rows", inputs=[x])
        captured.replay()
        assert torch.equal(captured.outputs[0], module.execute("rows", [x])[0])


def test_function_over_several_methods(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        session = module.new_session()
        x = torch.ones(4, device="cuda")
        count = torch.zeros(1, dtype=torch.int64, device="cuda")

        def loop(live: Session) -> tuple[torch.Tensor, torch.Tensor]:
            (out,) = live.execute("step", [x])
            (rows,) = live.execute("rows", [out.view(1, 4)])
            count.add_(1)
            return out, rows

        captured = session.capture_function(loop, preserved=[count])
        assert count.item() == 0
        for i in range(1, 20):
            captured.replay()
            total = torch.arange(4.0) + i
            weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
            out = total * weight
            torch.testing.assert_close(captured.result[0].cpu(), out)
            torch.testing.assert_close(captured.result[1].cpu(), (out * weight + out).view(1, 4))
            assert count.item() == i


def test_captures_by_size_are_bounded(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        cache = CaptureCache(module.default_session, "rows", capacity=3)
        first = cache.get({"s0": 1})
        assert cache.get({"s0": 1}) is first
        for rows in range(1, 9):
            captured = cache.get({"s0": rows})
            x = torch.randn(rows, 4, device="cuda")
            captured.inputs[0].copy_(x)
            captured.replay()
            assert torch.equal(captured.outputs[0], module.execute("rows", [x])[0])
        assert len(cache) == 3
        with pytest.raises(ClosedError):
            first.replay()


def host_program(folder: Path) -> Path:
    """Write a program whose method copies to the device and back."""
    method = MethodBuilder("through")
    x = method.input("x", "float32", (4,))
    on_device = method.planned("on_device", "float32", (4,), device="cuda:0")
    out = method.planned("out", "float32", (4,), kind="io")
    method.call("device_copy::h2d.out", x, out=on_device)
    method.call("aten::add.out", on_device, on_device, out=on_device)
    method.call("device_copy::d2h.out", on_device, out=out)
    write_program(folder, [method.build([out])])
    return folder


def test_copies_in_a_program(tmp_path: Path) -> None:
    with Module.load(host_program(tmp_path / "p")) as module:
        x = torch.randn(4)
        assert torch.equal(module.execute("through", [x])[0], x + x)


def test_what_touches_the_host_is_not_captured(tmp_path: Path) -> None:
    with Module.load(host_program(tmp_path / "p")) as module:
        session = module.new_session()
        with pytest.raises(CaptureError, match="on cpu"):
            session.capture("through")
        with pytest.raises(CaptureError, match=r"device_copy::h2d\.out: copies between host and device"):
            session.capture_function(lambda live: live.execute("through", [torch.ones(4)]))
        assert not torch.cuda.is_current_stream_capturing()


def test_failed_capture_leaves_nothing_behind(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        session = module.new_session()
        x = torch.ones(4, device="cuda")
        before = session.state["total"].clone()
        calls = []

        def waits(live: Session) -> object:
            calls.append(live)
            (out,) = live.execute("step", [x])
            return float(out.sum()) if live is session else None

        with pytest.raises(CaptureError):
            session.capture_function(waits)
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.equal(session.state["total"], before)
        captured = session.capture("step", inputs=[x])
        captured.replay()
        assert torch.equal(session.state["total"], before + 1)


@pytest.mark.usefixtures("no_collector")
def test_failed_captures_leave_memory_flat(tmp_path: Path) -> None:
    folder = host_program(tmp_path / "p")
    x = torch.ones(4, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        with Module.load(folder) as module, pytest.raises(CaptureError):
            module.default_session.capture_function(
                lambda live: live.execute("through", [torch.ones(4)]), preserved=[x]
            )
    assert torch.cuda.memory_allocated() == before


def test_failed_capture_names_the_instruction(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "bool", (4,), device="cuda:0")
    out = method.planned("out", "int64", (4, 1), device="cuda:0", kind="io")
    # How many elements are not zero is known on the host only after a wait, which a capture refuses.
    method.call("aten::nonzero.out", x, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module:
        ones = torch.ones(4, dtype=torch.bool, device="cuda")
        with pytest.raises(CaptureError, match=r"method 'f', instruction 0: aten::nonzero\.out"):
            module.default_session.capture("f", inputs=[ones])
        assert not torch.cuda.is_current_stream_capturing()
        assert module.execute("f", [ones])[0].flatten().tolist() == [0, 1, 2, 3]


def test_closed_sessions_do_not_replay(stateful: Folder) -> None:
    with Module.load(stateful("cuda:0")) as module:
        session = module.new_session()
        captured = session.capture("step")
        session.close()
        with pytest.raises(ClosedError):
            captured.replay()


def test_state_moves_with_the_device(stateful: Folder) -> None:
    with Module.load(stateful("cpu")) as module, Module.load(stateful("cuda:0")) as on_device:
        assert on_device.default_session.state["total"].is_cuda
        on_device.execute("step", [torch.ones(4, device="cuda")])
        on_device.default_session.reset()
        assert torch.equal(on_device.default_session.state["total"].cpu(), module.default_session.state["total"])


def test_large_constants_arrive_whole(tmp_path: Path) -> None:
    weight = torch.randn(48 * 2**20 + 3)
    method = MethodBuilder("sum")
    w = method.constant("w", "float32", (weight.numel(),), device="cuda:0")
    out = method.planned("out", "float32", (), device="cuda:0", kind="io")
    dims = method.literal([])
    method.call("aten::sum.IntList_out", w, dims, out=out)
    write_program(tmp_path / "p", [method.build([out])], constants={"w": weight})
    with Module.load(tmp_path / "p") as module:
        assert torch.equal(module.constants["w", "cuda:0"].cpu(), weight)
        spec = module.program.constants["w"]
        assert spec == t.ConstantSpec(dtype="float32", sizes=(weight.numel(),), shard=spec.shard)

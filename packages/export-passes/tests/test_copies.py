"""Insert and elide copies: round trips that go, and those that must stay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core import HOST, Device
from device_core.schema import types as t
from device_core.testing import RecordingDevice
from export_passes import BackendConfig, MethodConfig, Placement, lower
from export_passes.elide_copies import elide_copies
from export_passes.graph_pass import NodeError
from export_passes.insert_copies import InsertCopies, d2h, h2d, is_copy
from export_passes.method_graph import MethodGraph, Source
from export_passes.symbols import SymbolTable
from export_passes.tensor_spec import TensorSpec
from export_passes.testing import Apply, assert_equal
from torch.export import export
from torch.fx import Graph, Node

CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")
aten = torch.ops.aten


class Builder:
    """A graph by hand: every tensor is (4,) float32."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, name: str, device: Device) -> Node:
        node = self.graph.placeholder(name)
        node.meta["source"] = Source("input", name)
        return self._described(node, device)

    def call(self, target: Any, *args: Any, device: Device) -> Node:
        return self._described(self.graph.call_function(target, args), device)

    def method(self, *outputs: Node) -> MethodGraph:
        self.graph.output(outputs)
        config = MethodConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True)
        return MethodGraph(name="f", graph=self.graph, config=config)

    def _described(self, node: Node, device: Device) -> Node:
        value = torch.empty(4)
        node.meta |= {"val": value, "spec": TensorSpec.of(value, SymbolTable()), "device": device}
        node.meta["spec"] = TensorSpec(**{
            name: getattr(node.meta["spec"], name)
            for name in ("dtype", "sizes", "strides", "offset_bytes", "span_nbytes", "is_contiguous")
        }, device=device)  # fmt: skip
        return node


def targets(method: MethodGraph) -> list[str]:
    return [str(node.target).split(".")[1] if not is_copy(node) else node.target._opname for node in method.operators]


def test_round_trip_on_one_device_goes() -> None:
    b = Builder()
    x = b.input("x", CUDA0)
    up = b.call(h2d(), b.call(d2h(), x, device=HOST), device=CUDA0)
    method = b.method(b.call(aten.sin.default, up, device=CUDA0))
    elide_copies(method)
    assert targets(method) == ["sin"]
    assert method.operators[0].args == (x,)


def test_round_trip_between_devices_stays() -> None:
    b = Builder()
    down = b.call(d2h(), b.input("x", CUDA0), device=HOST)
    method = b.method(b.call(aten.sin.default, b.call(h2d(), down, device=CUDA1), device=CUDA1))
    elide_copies(method)
    assert targets(method) == ["d2h", "h2d", "sin"]


def test_copy_that_the_host_reads_stays_while_the_way_back_goes() -> None:
    b = Builder()
    down = b.call(d2h(), b.input("x", CUDA0), device=HOST)
    back = b.call(aten.sin.default, b.call(h2d(), down, device=CUDA0), device=CUDA0)
    method = b.method(back, b.call(aten.cos.default, down, device=HOST))
    elide_copies(method)
    assert targets(method) == ["d2h", "sin", "cos"]


def test_copies_that_nobody_reads_go() -> None:
    b = Builder()
    x = b.input("x", CUDA0)
    b.call(h2d(), b.call(d2h(), x, device=HOST), device=CUDA1)
    method = b.method(x)
    elide_copies(method)
    assert targets(method) == []


WRITES: list[tuple[str, str]] = [("original", "x"), ("host-copy", "down"), ("result", "up")]


@pytest.mark.parametrize("which", [w[1] for w in WRITES], ids=[w[0] for w in WRITES])
def test_round_trip_around_a_write_stays(which: str) -> None:
    b = Builder()
    x = b.input("x", CUDA0)
    down = b.call(d2h(), x, device=HOST)
    if which == "down":
        b.graph.call_function(aten.add_.Tensor, (down, 1))
    up = b.call(h2d(), down, device=CUDA0)
    if which != "down":
        b.graph.call_function(aten.add_.Tensor, ({"x": x, "up": up}[which], 1))
    method = b.method(b.call(aten.sin.default, up, device=CUDA0))
    elide_copies(method)
    assert targets(method) == [*(["d2h", "add_", "h2d"] if which == "down" else ["d2h", "h2d", "add_"]), "sin"]


def test_write_after_the_last_use_does_no_harm() -> None:
    b = Builder()
    x = b.input("x", CUDA0)
    up = b.call(h2d(), b.call(d2h(), x, device=HOST), device=CUDA0)
    result = b.call(aten.sin.default, up, device=CUDA0)
    b.graph.call_function(aten.add_.Tensor, (x, 1))
    method = b.method(result)
    elide_copies(method)
    assert targets(method) == ["sin", "add_"]


def test_reading_elsewhere_is_found() -> None:
    b = Builder()
    method = b.method(b.call(aten.sin.default, b.input("x", HOST), device=CUDA0))
    with pytest.raises(NodeError, match="runs on cuda:0 and reads x elsewhere"):
        InsertCopies().ensures(method)


def test_constants_are_on_every_device_that_reads_them_and_never_copied(load: Callable[..., Any]) -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0, 1, 12).reshape(3, 4))

        def forward(self, x: torch.Tensor) -> Any:
            top, bottom = self.weight.t().chunk(2)
            return x.sin() @ top, x.cos() @ bottom, self.weight

    def place(method: str, node: Node) -> Placement:
        return Placement({"matmul": CUDA0, "matmul_1": CUDA1}.get(node.name, HOST))

    x, model = torch.ones(2, 2), Reads()
    low = lower({"f": export(model, (x,))}, BackendConfig(partitioner=place))
    (method,) = low.program.methods
    homes = {v.device for v in method.values if isinstance(v, t.TensorValue) and isinstance(v.storage, t.Constant)}
    assert homes == {"cpu", "cuda:0", "cuda:1"}
    with RecordingDevice(2) as devices:
        module = load(low)
        assert devices.transferred("h2d") == (2, 96)
        devices.forget()
        assert_equal(module.execute("f", (x,)), model(x))
        assert devices.transferred("h2d") == (2, 32)
        module.close()


def test_written_input_stays_with_its_caller(load: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    place = BackendConfig(partitioner=lambda method, node: Placement(CUDA0))
    low = lower({"f": export(Apply(function), (torch.ones(4),))}, place)
    with RecordingDevice(1):
        module = load(low)
        x = torch.ones(4)
        assert_equal([*module.execute("f", (x,)), x], [torch.full((4,), 4.0), torch.full((4,), 2.0)])
        module.close()

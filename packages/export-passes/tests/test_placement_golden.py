"""Placement by golden vectors: what is copied, where buffers are and how large, for programs of a few operators.

Each program is executed on fake devices too, and compared with eager torch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from device_core import HOST, Device, Module, clone_to
from device_core.schema import types as t
from device_core.testing import RecordingDevice
from export_passes import BackendConfig, DevicePartitioner, FirstOf, Lowered, MethodConfig, Placement, lower
from export_passes.testing import Apply, Cache, MethodOf, assert_equal
from torch import nn
from torch.export import Dim, export
from torch.fx import Node

A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
B = torch.tensor([[-1.0, 0.5], [2.0, 8.0]])
C = torch.tensor([[7.0, 6.0], [5.0, 4.0]])
CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")
SKIP_BOTH = MethodConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True)
CALLERS_ALL = MethodConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True, plan_outputs=False)


def by_name(**devices: Device) -> Callable[[str, Node], Placement | None]:
    """Place the nodes that are named; the rest stays on the host."""
    return lambda method, node: Placement(devices[node.name]) if node.name in devices else None


def module_of(function: Callable[..., Any]) -> nn.Module:
    """Return a function as a module, or a new module of a class."""
    return function() if isinstance(function, type) else Apply(function)


def lowered(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], place: Any, config: MethodConfig | None = None
) -> Lowered:
    exported = export(module_of(function), tuple(inputs))
    return lower({"f": exported}, BackendConfig(partitioner=place, default=config or MethodConfig()))


def copies(method: t.Method) -> tuple[int, int]:
    """Return how many copies go to devices, and to the host."""
    names = [method.operators[call.operator] for call in method.instructions if isinstance(call, t.KernelCall)]
    return names.count("device_copy::h2d.out"), names.count("device_copy::d2h.out")


def buffers(method: t.Method) -> dict[tuple[str, str], int]:
    return {(buffer.device, buffer.kind): buffer.nbytes for buffer in method.buffers}


def outputs_on(method: t.Method) -> list[str]:
    return [method.values[i].device for i in method.outputs]


def executed(module: Module, name: str, inputs: Sequence[torch.Tensor], devices: RecordingDevice) -> list[torch.Tensor]:
    """Execute a method on 2x2 tensors where it wants them, with memory for the outputs that it does not plan.

    Checks that the copies in the program are all that is transferred, and that outputs are where it says; returns them
    on the host.
    """
    method = module.entry(name).method
    given = [clone_to(x, Device.parse(method.values[i].device)) for x, i in zip(inputs, method.inputs, strict=True)]
    memory = [
        clone_to(torch.zeros(2, 2), Device.parse(method.values[i].device))
        if method.values[i].storage == t.Bound(value=i) and i not in method.inputs
        else None
        for i in method.outputs
    ]
    devices.forget()
    outputs = module.execute(name, given, outputs=memory)
    up, down = copies(method)
    assert (devices.transferred("h2d"), devices.transferred("d2h")) == ((up, 16 * up), (down, 16 * down))
    assert [str(output.device) for output in outputs] == outputs_on(method)
    return [clone_to(output, HOST) for output in outputs]


def add(a: torch.Tensor, b: torch.Tensor) -> Any:
    return a + b


def add_twice(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    return (a + b) + c


def shared_operand(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    return a + b, a + c


def read_by_both(a: torch.Tensor, b: torch.Tensor) -> Any:
    c = a + b
    return c, torch.sin(c)


def returned_and_read(a: torch.Tensor, b: torch.Tensor) -> Any:
    c = a + b
    return c, c + b


def input_is_output(a: torch.Tensor, b: torch.Tensor) -> Any:
    return a + b, a


class Total(nn.Module):
    """The sum of what it was given so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 2))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        total = a + self.total
        self.total.copy_(total)
        return total


IO, SCRATCH = "io", "scratch"
DEFAULT = MethodConfig()
GOLDEN = [
    # id, function, inputs, placement, configuration, (h2d, d2h), buffers, devices of the outputs
    ("G1-add", add, (A, B), by_name(add=CUDA0), DEFAULT, (2, 1), {("cpu", IO): 16, ("cuda:0", SCRATCH): 528}, ["cpu"]),
    ("G2-all-on-host", add, (A, B), None, DEFAULT, (0, 0), {("cpu", IO): 16}, ["cpu"]),
    ("G4-skip-both", add, (A, B), by_name(add=CUDA0), SKIP_BOTH, (0, 0), {("cuda:0", IO): 16}, ["cuda:0"]),
    ("G4-skip-both-unplanned", add, (A, B), by_name(add=CUDA0), CALLERS_ALL, (0, 0), {}, ["cuda:0"]),
    ("G5-skip-h2d", add, (A, B), by_name(add=CUDA0), MethodConfig(skip_h2d_for_method_inputs=True), (0, 1),
     {("cpu", IO): 16, ("cuda:0", SCRATCH): 16}, ["cpu"]),
    ("G6-same-operand-twice", lambda a: a + a, (A,), by_name(add=CUDA0), DEFAULT, (1, 1),
     {("cpu", IO): 16, ("cuda:0", SCRATCH): 272}, ["cpu"]),
    ("G7-chain", add_twice, (A, B, C), by_name(add=CUDA0, add_1=CUDA0), DEFAULT, (3, 1),
     {("cpu", IO): 16, ("cuda:0", SCRATCH): 528}, ["cpu"]),
    ("G8-two-devices", add_twice, (A, B, C), by_name(add=CUDA0, add_1=CUDA1), DEFAULT, (4, 2),
     {("cpu", IO): 16, ("cpu", SCRATCH): 16, ("cuda:0", SCRATCH): 528, ("cuda:1", SCRATCH): 528}, ["cpu"]),
    ("G9-buffers-by-device", add_twice, (A, B, C), by_name(add=CUDA1, add_1=CUDA0), DEFAULT, (4, 2),
     {("cpu", IO): 16, ("cpu", SCRATCH): 16, ("cuda:0", SCRATCH): 528, ("cuda:1", SCRATCH): 528}, ["cpu"]),
    ("G10-one-copy-for-two-readers", shared_operand, (A, B, C), by_name(add=CUDA0, add_1=CUDA0), DEFAULT, (3, 2),
     {("cpu", IO): 80, ("cuda:0", SCRATCH): 784}, ["cpu", "cpu"]),
    ("G11-skip-h2d-two-readers", shared_operand, (A, B, C), by_name(add=CUDA0, add_1=CUDA0), SKIP_BOTH, (0, 0),
     {("cuda:0", IO): 272}, ["cuda:0", "cuda:0"]),
    ("G12-result-read-on-host", read_by_both, (A, B), by_name(add=CUDA0),
     MethodConfig(skip_d2h_for_method_outputs=True), (2, 1),
     {("cpu", IO): 16, ("cpu", SCRATCH): 16, ("cuda:0", IO): 16, ("cuda:0", SCRATCH): 272}, ["cuda:0", "cpu"]),
    ("G13-outputs-stay", returned_and_read, (A, B), by_name(add=CUDA0, add_1=CUDA0),
     MethodConfig(skip_d2h_for_method_outputs=True), (2, 0),
     {("cuda:0", IO): 272, ("cuda:0", SCRATCH): 272}, ["cuda:0", "cuda:0"]),
    ("G14-input-is-output", input_is_output, (A, B), by_name(add=CUDA0), SKIP_BOTH, (0, 0),
     {("cuda:0", IO): 16}, ["cuda:0", "cuda:0"]),
    ("G15-callers-outputs", add, (A, B), by_name(add=CUDA0), MethodConfig(plan_outputs=False), (2, 1),
     {("cuda:0", SCRATCH): 528}, ["cpu"]),
    ("G16-state-on-device", Total, (A,), by_name(add=CUDA0, copy_=CUDA0), DEFAULT, (1, 1),
     {("cpu", IO): 16, ("cuda:0", SCRATCH): 272}, ["cpu"]),
    ("G16-state-written-on-host", Total, (A,), by_name(add=CUDA0), DEFAULT, (2, 1),
     {("cpu", IO): 16, ("cuda:0", SCRATCH): 528}, ["cpu"]),
]  # fmt: skip


@pytest.mark.parametrize("row", GOLDEN, ids=[row[0] for row in GOLDEN])
def test_golden(row: Any) -> None:
    _, function, inputs, place, config, expected_copies, expected_buffers, devices = row
    (method,) = lowered(function, inputs, place, config).program.methods
    assert copies(method) == expected_copies
    assert buffers(method) == expected_buffers
    assert outputs_on(method) == devices
    assert [buffer.device for buffer in method.buffers] == sorted(buffer.device for buffer in method.buffers)


@pytest.mark.parametrize("row", GOLDEN, ids=[row[0] for row in GOLDEN])
def test_golden_executed(row: Any, load: Callable[[Lowered], Module]) -> None:
    _, function, inputs, place, config, *_ = row
    eager = module_of(function)
    with RecordingDevice(2) as devices:
        module = load(lowered(function, inputs, place, config))
        for _ in range(2):
            assert_equal(executed(module, "f", inputs, devices), eager(*inputs))
        module.close()


def test_index_of_device_is_kept_everywhere() -> None:
    device = Device.parse("cuda:3")
    (method,) = lowered(add, (A, B), DevicePartitioner(device)).program.methods
    assert {value.device for value in method.values} == {"cpu", "cuda:3"}
    assert {buffer.device for buffer in method.buffers} == {"cpu", "cuda:3"}


def test_g17_methods_share_state_on_its_device(load: Callable[[Lowered], Any]) -> None:
    model, eager = Cache(), Cache()
    eager.load_state_dict(model.state_dict())
    args, row = (torch.ones(2, 4), torch.tensor([1, 3])), torch.tensor([1])
    low = lower(
        {"write": export(model, args), "read": export(MethodOf(model, "read"), (row,))},
        BackendConfig(partitioner=DevicePartitioner(CUDA0)),
    )
    assert {state.device for state in low.program.state.values()} == {"cuda:0"}
    with RecordingDevice(1) as devices:
        module = load(low)
        # The constant, once for both methods.
        assert devices.transferred("h2d") == (1, 16)
        assert_equal(module.execute("write", args), eager(*args))
        devices.forget()
        for _ in range(3):
            assert_equal(module.execute("read", (row,)), eager.read(row))
        # The row alone.
        assert devices.transferred("h2d") == (3, 24)
        module.close()


def test_written_memory_decides_where_its_writers_run() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        h.add_(1)
        return h

    (method,) = lowered(function, (A,), by_name(mul=CUDA0, add_=CUDA1)).program.methods
    assert copies(method) == (1, 1)
    assert {value.device for value in method.values if isinstance(value, t.TensorValue)} == {"cpu", "cuda:0"}


def test_copies_are_renewed_after_a_write(load: Callable[[Lowered], Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        h = x * 2
        before = torch.sin(h)
        again = torch.cos(h)
        h.add_(1)
        return before, again, torch.tan(h)

    low = lowered(function, (A,), by_name(sin=CUDA0, cos=CUDA0, tan=CUDA0))
    assert copies(low.program.methods[0]) == (2, 3)
    with RecordingDevice(1):
        module = load(low)
        assert_equal(module.execute("f", (A,)), function(A))
        module.close()


def test_views_cross_without_gaps(load: Callable[[Lowered], Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        h = x * 2
        return torch.sin(h.t()), torch.cos(h[:, 1]), h.expand(3, 2, 2) + 1

    low = lowered(function, (A,), by_name(sin=CUDA0, cos=CUDA1, add=CUDA0))
    with RecordingDevice(2):
        module = load(low)
        assert_equal(module.execute("f", (A,)), function(A))
        module.close()


@pytest.mark.parametrize("tokens", [1, 5], ids=lambda n: f"T{n}")
def test_dynamic_sizes_survive_placement(tokens: int, load: Callable[[Lowered], Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        h = torch.sin(x)
        return h[-1:] + 1, torch.cat([h, x])

    exported = export(Apply(function), (torch.ones(3, 4),), dynamic_shapes={"args": ({0: Dim("T", min=1, max=8)},)})
    low = lower({"f": exported}, BackendConfig(partitioner=by_name(sin=CUDA0, add=CUDA0, cat=CUDA1)))
    (method,) = low.program.methods
    sizes = {value.name: value.sizes for value in method.values if isinstance(value, t.TensorValue)}
    assert sizes["sin"] == ("s0", 4)
    assert buffers(method)["cuda:0", "scratch"] >= 8 * 4 * 4
    x = torch.linspace(0, 1, tokens * 4).reshape(tokens, 4)
    with RecordingDevice(2):
        module = load(low)
        assert_equal(module.execute("f", (x,)), function(x))
        module.close()


def test_g22_each_method_has_its_own_settings(load: Callable[[Lowered], Module]) -> None:
    exported = export(Apply(add), (A, B))
    config = BackendConfig(partitioner=DevicePartitioner(CUDA0), methods={"f": CALLERS_ALL})
    low = lower({"f": exported, "g": exported}, config)
    f, g = low.program.methods
    assert (copies(f), buffers(f), outputs_on(f)) == ((0, 0), {}, ["cuda:0"])
    assert (copies(g), buffers(g), outputs_on(g)) == ((2, 1), {("cpu", IO): 16, ("cuda:0", SCRATCH): 528}, ["cpu"])
    with RecordingDevice(1) as devices:
        module = load(low)
        for name in ("f", "g"):
            assert_equal(executed(module, name, (A, B), devices), [A + B])
        module.close()


def test_first_partitioner_that_answers_decides() -> None:
    place = FirstOf((by_name(sin=CUDA1), DevicePartitioner(CUDA0, where=lambda node: "add" in node.name)))
    (method,) = lowered(read_by_both, (A, B), place).program.methods
    devices = {v.name: v.device for v in method.values if isinstance(v, t.TensorValue)}
    assert (devices["add"], devices["sin"]) == ("cuda:0", "cuda:1")

"""`torch.cond`: both branches become one list of instructions with jumps, and equal eager torch on both ways."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core import Device
from device_core.schema import types as t
from device_core.testing import RecordingDevice
from export_passes import BackendConfig, DevicePartitioner, PassError, Placement, lower
from export_passes.backends import PlainTorch, register
from export_passes.memory_plan.naive import naive
from export_passes.testing import Apply, assert_equal
from torch import nn
from torch.export import Dim, export
from torch.fx import Node

CUDA0, CUDA1 = Device.parse("cuda:0"), Device.parse("cuda:1")
DEVICES = (Device.parse("cpu"), CUDA0, CUDA1)


def one(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def several(x: torch.Tensor) -> Any:
    low, high = torch.cond(x.sum() > 0, lambda x: (x.sin(), x.t() * 3), lambda x: (-x, x.t() * 2), (x,))
    return low + 1, high, low.chunk(3, -1)[1]


def nested(x: torch.Tensor) -> Any:
    def deeper(x: torch.Tensor) -> Any:
        y = x.cos()
        return torch.cond(x[0, 0] > -2, lambda x, y: x + y, lambda x, y: x - y, (x, y))

    return torch.cond(x.sum() > 0, lambda x: x.exp(), deeper, (x,)) * 3


def one_after_the_other(x: torch.Tensor) -> Any:
    h = torch.tanh(x)
    h = torch.cond(x.sum() > 0, lambda h, x: h + x, lambda h, x: h * 2, (h, x))
    before = h.sin()
    h = torch.cond(h.sum() > -4, lambda h, b: h - b, lambda h, b: b.exp(), (h, before))
    return h + before, x.exp()


def read_in_both_and_after(x: torch.Tensor) -> Any:
    h = x * 3
    y = torch.cond(x.sum() > 0, lambda h: h.sin() + h.cos(), lambda h: h.exp(), (h,))
    return y + h, h.sin()


class Weighted(nn.Module):
    """Branches that read a weight and a state, and a state that is written around them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum(0))
        y = torch.cond(x.sum() > 0, lambda x: x * self.weight, lambda x: x + self.seen, (x,))
        self.seen.add_(1)
        return y + self.seen


MODELS = [
    pytest.param(lambda: Apply(one), id="one"),
    pytest.param(lambda: Apply(several), id="several-results"),
    pytest.param(lambda: Apply(nested), id="nested"),
    pytest.param(lambda: Apply(one_after_the_other), id="one-after-the-other"),
    pytest.param(lambda: Apply(read_in_both_and_after), id="read-in-both-and-after"),
    pytest.param(Weighted, id="weight-and-state"),
]


def spread(number: int) -> Callable[[str, Node], Placement]:
    """Place operators all over the host and two devices, another way for each number."""
    return lambda method, node: Placement(DEVICES[sum(map(ord, node.name)) * number // 7 % 3])


PLACES = [
    pytest.param(None, id="host"),
    pytest.param(DevicePartitioner(CUDA1), id="fake-device"),
    *(pytest.param(spread(number), id=f"spread{number}") for number in (3, 5, 11, 13)),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", MODELS)
def test_both_ways_equal_eager(make: Callable[[], nn.Module], place: Any, load: Callable[..., Any]) -> None:
    model, eager = make(), make()
    length = torch.export.Dim("T", min=1, max=8)
    shapes = ({0: length},) if isinstance(model, Weighted) else {"args": ({0: length},)}
    with torch.no_grad():
        exported = export(model, (torch.ones(4, 3),), dynamic_shapes=shapes)
    lowered = lower({"f": exported}, BackendConfig(partitioner=place))
    with RecordingDevice(2):
        module = load(lowered)
        for rows, sign in ((4, 1), (2, -1), (2, 1), (8, -1), (5, -2)):
            x = sign * (torch.arange(rows * 3.0).reshape(rows, 3) / rows + 0.5)
            with torch.no_grad():
                assert_equal(module.execute("f", (x,)), eager(x))
        module.close()


def test_instructions_of_a_branch() -> None:
    (method,) = lower({"f": export(Apply(one), (torch.ones(4),))}, planner=naive).program.methods
    kinds = [
        method.operators[i.operator].split("::")[1] if isinstance(i, t.KernelCall) else type(i).__name__
        for i in method.instructions
    ]
    assert kinds == ["sum.out", "gt.Scalar_out", "JumpFalse", "add.out", "Move", "JumpFalse", "mul.out", "Move"]
    jumps = [i.target for i in method.instructions if isinstance(i, t.JumpFalse)]
    assert jumps == [6, 8]


def test_a_region_ends_where_ways_part(load: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        h = torch.cond(x.sum() > 0, lambda x: (x + 1).sin(), lambda x: (x * 2).cos(), (x,))
        return h.exp() + 1

    register()
    place = DevicePartitioner(DEVICES[0], backend=PlainTorch())
    lowered = lower({"f": export(Apply(function), (torch.ones(4),))}, BackendConfig(partitioner=place))
    assert len(lowered.program.methods[0].delegates) == 4
    module = load(lowered)
    for sign in (1, -1):
        assert_equal(module.execute("f", (sign * torch.ones(4),)), function(sign * torch.ones(4)))


def sizes_decide(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x * 2, (x,))


def loop(x: torch.Tensor) -> Any:
    return torch._higher_order_ops.while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,))


REFUSED = [
    pytest.param(sizes_decide, r"pass emit, .*a program cannot hold a SymBool", id="condition-on-sizes"),
    pytest.param(loop, r"pass decompose, method 'f', node 'while_loop': .*loops and the like", id="loop"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refused(function: Callable[..., Any], message: str) -> None:
    shapes = {"args": ({0: Dim("T", min=1, max=8)},)}
    exported = export(Apply(function), (torch.ones(4, 3),), dynamic_shapes=shapes)
    with pytest.raises(PassError, match=message):
        lower({"f": exported})

"""Opaque regions: extraction, the plain-torch backend, and AOTInductor on the host."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core import HOST, Device, DeviceType
from device_core.testing import RecordingDevice
from export_passes import BackendConfig, DevicePartitioner, FirstOf, PassError, lower
from export_passes.backends import AotInductor, Backend, PlainTorch, Region, register
from export_passes.testing import Apply, Cache, Mlp, assert_equal
from torch.export import Dim, export
from torch.fx import Node

X = torch.linspace(-2, 2, 12).reshape(3, 4)
Y = torch.linspace(1, 3, 12).reshape(3, 4)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register()


def named(*parts: str) -> Callable[[Node], bool]:
    return lambda node: any(part in node.name for part in parts)


def in_region(
    where: Callable[[Node], bool] | None = None, device: Device = HOST, backend: Backend | None = None
) -> BackendConfig:
    return BackendConfig(partitioner=DevicePartitioner(device, where=where, backend=backend or PlainTorch()))


def one_operator(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x + y) * 2


def split_by_the_host(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = torch.sin(x)
    b = a + y
    return torch.sin(b) + a


def view_leaves(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = torch.sin(x)
    row = a[1]
    b = torch.sin(row)
    row.add_(1)
    return row * 2, a, b, x[0] + 1


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, indices = torch.sort(torch.sin(x), dim=1)
    low, high = torch.sin(y).chunk(2, 1)
    return values, indices, high + low


def writes_its_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x * 2
    torch.sin(h, out=h[:])
    h.view(-1).add_(1)
    torch.sin_(h)
    return h + y


CASES = [
    pytest.param(one_operator, None, 1, id="whole-method"),
    pytest.param(split_by_the_host, named("sin"), 2, id="two-regions"),
    pytest.param(view_leaves, named("sin", "select"), 1, id="view-leaves"),
    pytest.param(several, named("sin", "sort", "chunk"), 1, id="several-results"),
    pytest.param(writes_its_input, named("sin"), 2, id="writes-its-input"),
]


@pytest.mark.parametrize(("function", "where", "regions"), CASES)
def test_region_equals_eager(
    function: Callable[..., Any], where: Callable[[Node], bool] | None, regions: int, compiled: Callable[..., Any]
) -> None:
    module = compiled(Apply(function), (X, Y), in_region(where))
    (method,) = module.program.methods
    assert len(method.delegates) == regions
    assert len({delegate.region for delegate in method.delegates}) == regions
    for x, y in ((X, Y), (Y, -X)):
        assert_equal(module.execute("forward", (x, y)), function(x.clone(), y.clone()))


def test_state_written_by_a_region_is_shared(load: Callable[..., Any]) -> None:
    model, eager = Cache(), Cache()
    eager.load_state_dict(model.state_dict())
    args = (torch.ones(2, 4), torch.tensor([1, 3]))
    module = load(lower({"forward": export(model, args)}, in_region()))
    assert not module.program.methods[0].operators
    for _ in range(2):
        assert_equal(module.execute("forward", args), eager(*args))
    assert_equal(module.default_session.state["keys"], eager.keys)


def test_regions_and_kernels_on_devices(load: Callable[..., Any]) -> None:
    device = Device(DeviceType.CUDA, 1)

    class OnHost(PlainTorch):
        """Exports on the host what runs on the fake device."""

        def compile(self, region: Region) -> bytes:
            return super().compile(dataclasses.replace(region, device=HOST))

    place = FirstOf((DevicePartitioner(device, where=named("sin"), backend=OnHost()), DevicePartitioner(device)))
    lowered = lower({"forward": export(Apply(split_by_the_host), (X, Y))}, BackendConfig(partitioner=place))
    (method,) = lowered.program.methods
    assert [delegate.device for delegate in method.delegates] == ["cuda:1", "cuda:1"]
    assert {value.device for value in method.values if "sin" in value.name} == {"cuda:1"}
    with RecordingDevice(2) as devices:
        module = load(lowered)
        assert_equal(module.execute("forward", (X, Y)), split_by_the_host(X, Y))
        assert (devices.transferred("h2d")[0], devices.transferred("d2h")[0]) == (2, 1)
        module.close()


@pytest.mark.parametrize("tokens", [1, 4, 9], ids=lambda n: f"T{n}")
def test_dynamic_sizes_survive_a_region(tokens: int, compiled: Callable[..., Any]) -> None:
    model = Mlp()
    dynamic = {"tokens": {0: Dim("T", min=1, max=9)}}
    module = compiled(model, (torch.arange(5),), in_region(named("linear", "silu")), dynamic_shapes=dynamic)
    (method,) = module.program.methods
    assert {value.sizes[0] for value in method.values if "linear_1" in value.name} == {"s0"}
    assert_equal(module.execute("forward", (torch.arange(tokens),)), model(torch.arange(tokens)))


def test_regions_of_two_methods_have_their_own_names_and_equal_payloads_one_key() -> None:
    class Fixed(PlainTorch):
        def compile(self, region: Region) -> bytes:
            return b"same"

    exported = export(Apply(one_operator), (X, Y))
    lowered = lower({"f": exported, "g": exported}, in_region(backend=Fixed()))
    delegates = [delegate for method in lowered.program.methods for delegate in method.delegates]
    assert [delegate.region for delegate in delegates] == ["f.region0", "g.region0"]
    assert len(lowered.delegates) == 1


def test_region_that_cannot_move_is_refused() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return torch.sin(x)

    class Nothing(PlainTorch):
        def compile(self, region: Region) -> bytes:
            return b""

    config = in_region(named("add"), device=Device(DeviceType.CUDA, 0), backend=Nothing())
    exported = export(Apply(function), (X.clone(), Y))
    with pytest.raises(PassError, match=r"propagate_device.*region placed on cuda:0 writes memory whose home is cpu"):
        lower({"f": exported}, config)


class Rounds(torch.nn.Module):
    """A cache that is written, integer division by a tensor, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor, divisor: torch.Tensor) -> Any:
        h = torch.relu(self.linear(x))
        self.seen.add_(h)
        rows = torch.arange(3) // divisor
        return h, rows, self.seen * 2


@pytest.fixture(scope="session")
def rounds() -> tuple[Rounds, Any]:
    """One package for all tests: the first compilation of a process takes most of a minute."""
    model = Rounds()
    exported = export(model, (X, torch.tensor(2)))
    return model, lower({"forward": exported}, in_region(backend=AotInductor()))


@pytest.mark.slow
def test_aot_inductor_equals_eager(rounds: tuple[Rounds, Any], load: Callable[..., Any]) -> None:
    model, lowered = rounds
    eager = Rounds()
    eager.load_state_dict(model.state_dict())
    module = load(lowered)
    assert [delegate.backend for delegate in module.program.methods[0].delegates] == ["aot_inductor"]
    for factor, divisor in ((1.0, 2), (-3.0, 1), (0.5, 3)):
        args = (X * factor, torch.tensor(divisor))
        torch.testing.assert_close(list(module.execute("forward", args)), list(eager(*args)))
    torch.testing.assert_close(module.default_session.state["seen"], eager.seen)


@pytest.mark.slow
def test_aot_inductor_sessions_are_apart(rounds: tuple[Rounds, Any], load: Callable[..., Any]) -> None:
    _, lowered = rounds
    module, args = load(lowered), (X, torch.tensor(2))
    first, second = module.new_session(), module.new_session()
    once = [t.clone() for t in first.execute("forward", args)]
    first.execute("forward", args)
    assert_equal(second.execute("forward", args), once)


@pytest.mark.slow
def test_aot_inductor_takes_inputs_of_any_strides(rounds: tuple[Rounds, Any], load: Callable[..., Any]) -> None:
    _, lowered = rounds
    module, divisor = load(lowered), torch.tensor(2)
    plain = [t.clone() for t in module.new_session().execute("forward", (X, divisor))]
    assert_equal(module.new_session().execute("forward", (X.t().contiguous().t().contiguous(), divisor)), plain)

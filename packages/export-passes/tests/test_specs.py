"""Specs: symbols and expressions of sizes, and the sizes that a program cannot have."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core.schema import types as t
from device_core.schema.dims import evaluate
from export_passes import PassError, lower
from export_passes.testing import Apply, assert_equal
from torch.export import Dim, export


def method_of(function: Callable[..., Any], *args: torch.Tensor, **dims: Any) -> t.Method:
    shapes = {"args": tuple(dims.get(f"x{i}") for i in range(len(args)))} if dims else None
    return lower({"f": export(Apply(function), args, dynamic_shapes=shapes)}).program.methods[0]


def named(method: t.Method, name: str) -> t.TensorValue:
    return next(v for v in method.values if isinstance(v, t.TensorValue) and v.name == name)


def test_symbols_are_named_in_order_with_their_ranges() -> None:
    rows, columns = Dim("rows", min=2, max=9), Dim("columns", min=1, max=5)
    method = method_of(
        lambda x, y: (x + 1, y + 1), torch.ones(3, 4), torch.ones(4, 2), x0={0: rows, 1: columns}, x1={0: columns}
    )
    assert method.symbols == (t.Symbol(name="s0", min=2, max=9), t.Symbol(name="s1", min=1, max=5))
    assert named(method, "add").sizes == ("s0", "s1")
    assert named(method, "add").strides == ("s1", 1)
    assert named(method, "add_1").sizes == ("s1", 2)


EXPRESSIONS: list[tuple[str, Callable[[torch.Tensor], Any], Callable[[int], int]]] = [
    ("sum", lambda x: torch.cat([x, x[:2]]), lambda n: n + 2),
    ("product", lambda x: torch.cat([x, x, x]), lambda n: 3 * n),
    ("difference", lambda x: x[1:] + 1, lambda n: n - 1),
    ("flattened", lambda x: (x + 1).reshape(-1), lambda n: n * 4),
    ("halved", lambda x: x.new_zeros(x.shape[0] // 2 + 2), lambda n: n // 2 + 2),
    ("strided", lambda x: x[::3] + 1, lambda n: (n + 2) // 3),
    ("remainder", lambda x: x.new_zeros(x.shape[0] % 3 + 2), lambda n: n % 3 + 2),
    ("square", lambda x: x @ x.new_ones(4, x.shape[0] * x.shape[0]), lambda n: n),
    ("largest", lambda x: x.new_zeros(torch.sym_max(x.shape[0], 4)), lambda n: max(n, 4)),
    ("smallest", lambda x: x.new_zeros(torch.sym_min(x.shape[0], 4)), lambda n: min(n, 4)),
]


@pytest.mark.parametrize(("function", "size"), [e[1:] for e in EXPRESSIONS], ids=[e[0] for e in EXPRESSIONS])
def test_sizes_are_expressions_of_symbols(
    function: Callable[[torch.Tensor], Any], size: Callable[[int], int], compiled: Callable[..., Any]
) -> None:
    dynamic = {"args": ({0: Dim("n", min=5, max=12)},)}
    module = compiled(Apply(function), (torch.ones(6, 4),), dynamic_shapes=dynamic)
    (method,) = module.program.methods
    output = method.values[method.outputs[0]]
    for n in (5, 7, 12):
        assert evaluate(output.sizes[0], {"s0": n}) == size(n)
        x = torch.linspace(0, 1, n * 4).reshape(n, 4)
        assert_equal(module.execute("forward", (x,)), function(x))


def test_size_as_an_argument(compiled: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x * n, torch.full((2,), n), torch.arange(n) + 2 * n, n

    module = compiled(Apply(function), (torch.ones(3),), dynamic_shapes={"args": ({0: Dim("n", min=1, max=9)},)})
    for n in (1, 4, 9):
        assert_equal(module.execute("forward", (torch.ones(n),)), function(torch.ones(n)))


def rows_that_are_set(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.nonzero(x)[:, 0].float()])


NO_MAXIMUM = {"args": ({0: Dim("n", min=2)},)}
REFUSED = [
    pytest.param(rows_that_are_set, None, r"pass specs, .*node 'nonzero': .*depends on data", id="unbacked"),
    pytest.param(lambda x: x[x > 0], None, "depends on data", id="mask"),
    pytest.param(lambda x: x * x.sum().item(), None, "node 'item': reads a number out of a tensor", id="read-out"),
    pytest.param(lambda x: x + 1, NO_MAXIMUM, r"pass specs.*input 'args_0': symbol .* no upper bound", id="no-maximum"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "dynamic", "message"), REFUSED)
def test_refused(function: Callable[..., Any], dynamic: Any, message: str) -> None:
    exported = export(Apply(function), (torch.ones(5),), dynamic_shapes=dynamic)
    with pytest.raises(PassError, match=message):
        lower({"f": exported})


def test_layouts_are_kept() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.clone(), x + 1

    image = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)
    method = method_of(function, image)
    assert [method.values[i].strides for i in method.outputs] == [(24, 1, 8, 2)] * 2


def test_constant_with_permuted_strides_is_stored_as_it_lies(compiled: Callable[..., Any]) -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(12.0).reshape(3, 4).t())
            self.register_buffer("gaps", torch.arange(24.0).reshape(4, 6)[:, ::2])

        def forward(self, x: torch.Tensor) -> Any:
            return self.table + x, self.table[1] + self.gaps[:, 1:].t()[0, 0]

    x = torch.ones(4, 3)
    assert_equal(compiled(Table(), (x,)).execute("forward", (x,)), Table()(x))


def test_state_with_permuted_strides_is_refused() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(3, 4).t())

        def forward(self, x: torch.Tensor) -> Any:
            return self.table.add_(x)

    with pytest.raises(PassError, match=r"state 'table': expected a contiguous tensor, got strides \(1, 4\)"):
        lower({"f": export(Table(), (torch.ones(4, 3),))})

"""Out variants: which overload an operator finds, and outputs that the caller supplies."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core import InputError
from device_core.schema import types as t
from export_passes import BackendConfig, MethodConfig, lower
from export_passes.lowerings import out_form, out_names
from export_passes.testing import Apply, assert_equal
from torch.export import export

aten = torch.ops.aten

FORMS = [
    (aten.add.Tensor, aten.add.out, ("out",)),
    (aten.add.Scalar, aten.add.Scalar_out, ("out",)),
    (aten.mm.default, aten.mm.out, ("out",)),
    (aten.sum.dim_IntList, aten.sum.IntList_out, ("out",)),
    (aten.mean.dim, aten.mean.out, ("out",)),
    (aten.cat.default, aten.cat.out, ("out",)),
    (aten.pow.Tensor_Scalar, aten.pow.Tensor_Scalar_out, ("out",)),
    (aten.where.self, aten.where.self_out, ("out",)),
    (aten.index.Tensor, aten.index.Tensor_out, ("out",)),
    (aten.arange.start_step, aten.arange.start_out, ("out",)),
    (aten.sort.stable, aten.sort.values_stable, ("values", "indices")),
    (aten.topk.default, aten.topk.values, ("values", "indices")),
    (aten.max.dim, aten.max.dim_max, ("max", "max_values")),
    (aten.native_layer_norm.default, aten.native_layer_norm.out, ("out0", "out1", "out2")),
]


@pytest.mark.parametrize(("operator", "form", "names"), FORMS, ids=[str(f[0]) for f in FORMS])
def test_out_form(operator: Any, form: Any, names: tuple[str, ...]) -> None:
    assert out_form(operator) is form
    assert out_names(operator, form) == names


NONE = [aten.view.default, aten.add_.Tensor, aten.split.Tensor, aten.add.out, aten._local_scalar_dense.default]


@pytest.mark.parametrize("operator", NONE, ids=str)
def test_no_out_form(operator: Any) -> None:
    assert out_form(operator) is None


def owned(x: torch.Tensor) -> Any:
    h = x + 1
    return h, h[1:], x, h, x.t(), torch.tensor([1.0]), h.sum()


def test_caller_supplies_every_output(compiled: Callable[..., Any]) -> None:
    config = BackendConfig(default=MethodConfig(plan_outputs=False))
    x = torch.arange(6.0).reshape(2, 3)
    module = compiled(Apply(owned), (x,), config)
    (method,) = module.program.methods
    for index in method.outputs:
        value = method.values[index]
        assert isinstance(value, t.TensorValue)
        assert value.storage == t.Bound(value=index)
    expected = owned(x)
    memory = [torch.empty(e.shape) for e in expected]
    outputs = module.execute("forward", (x,), outputs=memory)
    assert_equal(outputs, expected)
    assert [o.data_ptr() for o in outputs] == [m.data_ptr() for m in memory]


def test_output_that_is_an_input_has_memory_of_its_own(compiled: Callable[..., Any]) -> None:
    module = compiled(Apply(lambda x: x), (torch.ones(3),), BackendConfig(default=MethodConfig(plan_outputs=False)))
    x, memory = torch.arange(3.0), torch.empty(3)
    assert module.execute("forward", (x,), outputs=[memory])[0] is memory
    assert_equal(memory, x)
    with pytest.raises(InputError, match=r"memory for output 0 .* overlaps input 0"):
        module.execute("forward", (x,), outputs=[x])


def test_planned_inputs_are_copied_in(compiled: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.clone()

    x = torch.ones(3)
    module = compiled(Apply(function), (torch.ones(3),), BackendConfig(default=MethodConfig(plan_inputs=True)))
    assert_equal([*module.execute("forward", (x,)), x], [torch.full((3,), 2.0), torch.ones(3)])
    assert {buffer.kind for buffer in module.program.methods[0].buffers} == {"io"}


def test_nothing_is_called_for_views_and_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h = torch.empty(2, 3)
        h.t()[1:].copy_(x.view(-1)[:4].view(2, 2))
        return h.unsqueeze(0).expand(2, 2, 3).select(0, 1)

    (method,) = lower({"f": export(Apply(function), (torch.ones(2, 3),))}).program.methods
    assert method.operators == ("aten::copy_",)


def test_plain_values_pass_through(compiled: Callable[..., Any]) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: int, nothing: None) -> Any:
            return x * factor, 3, None

    module = compiled(Mixed(), (torch.ones(2), 4, None))
    assert_equal(module.execute("forward", (torch.ones(2), 4, None)), (torch.full((2,), 4.0), 3, None))

"""Decompose and inline: what exports contain beside plain operators, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from export_passes import PassError, lower
from export_passes.testing import Apply, assert_equal
from torch import nn
from torch.export import export

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)


class GradModes(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h = self.linear(x)
            with torch.enable_grad():
                h = self.linear(h)
        return h + x


class Autocasts(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.linear(x) * 2
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.linear(h.float()) + x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lstm(x[None])


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x.t()[None])))


def devices_burnt_in(x: torch.Tensor) -> Any:
    made = torch.zeros(3, device=torch.device("cpu")) + torch.ones(3, device="cpu")
    return x.to("cpu") + made, x.to(device="cpu", dtype=torch.float64), torch.arange(3, device=x.device)


def many_operators(x: torch.Tensor) -> Any:
    return (
        torch.einsum("ab,cb->ac", x, x), x.cumsum(0), x.std(), x.argmax(-1), x.roll(1), x.flip(0), x.unfold(0, 2, 1),
        nn.functional.pad(x, (1, 1)), nn.functional.gelu(x), x.repeat_interleave(2, 0), x.clamp(0, 1), x // 2,
        nn.functional.one_hot(x.argmax(-1), 3), torch.linalg.norm(x), torch.outer(x[0], x[1]), x.view(torch.int32),
        x.scatter(0, torch.zeros(1, 3, dtype=torch.int64), 1.0), nn.functional.softplus(x), x.nan_to_num(),
        torch.view_as_real(torch.complex(x, x)), torch.baddbmm(x[None], x[None], torch.ones(1, 3, 3)), x.var(0),
        x.logsumexp(1), x.any(),
    )  # fmt: skip


CLOSE = [
    pytest.param(GradModes(), id="grad-modes"),
    pytest.param(Autocasts(), id="autocast"),
    pytest.param(Recurrent(), id="lstm"),
    pytest.param(Image().eval(), id="convolution-and-norm"),
    pytest.param(Apply(devices_burnt_in), id="burnt-in-devices"),
    pytest.param(Apply(many_operators), id="many-operators"),
]


@pytest.mark.parametrize("model", CLOSE)
def test_model_equals_eager(model: nn.Module, compiled: Callable[..., Any]) -> None:
    module = compiled(model, (X,))
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(-X))
    # Some operators are fused in eager torch; the others are equal bit for bit, as other tests see.
    torch.testing.assert_close(list(module.execute("forward", (-X,))), expected, rtol=1e-5, atol=1e-6)


def test_no_device_is_left_in_the_program() -> None:
    program = lower({"f": export(Apply(devices_burnt_in), (X,))}).program
    scalars = [getattr(value, "value", None) for value in program.methods[0].values]
    assert not any(isinstance(value, str) and "cpu" in value for value in scalars)


def test_constant_that_is_never_written_is_not_copied() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0])

    (method,) = lower({"f": export(Apply(function), (X,))}).program.methods
    assert method.operators == ("aten::add.out",)


def test_constant_that_is_written_is_copied(compiled: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0, 3.0])
        table.add_(x[0])
        return table

    module = compiled(Apply(function), (X,))
    for _ in range(2):
        assert_equal(module.execute("forward", (X,)), function(X))


REFUSED = [
    pytest.param(lambda x: x.resize_(2, 2), r"node 'resize_': .*no view does the same", id="resize"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refused_with_pass_and_node(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(PassError, match=message):
        lower({"f": export(Apply(function), (X.clone(),))})


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("export_passes_test", "DEF") as library:
        for name in ("first", "second"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, torch.sin, "CompositeExplicitAutograd")
        library.define("step(Tensor(a!) state, Tensor x, *, ScalarType? dtype=None) -> (Tensor low, Tensor high)")
        library.define(
            "step.out(Tensor(a!) state, Tensor x, *, ScalarType? dtype=None, Tensor(b!) low, Tensor(c!) high) -> ()"
        )
        library.impl("step", step, "CompositeExplicitAutograd")
        library.impl("step.out", step_out, "CompositeExplicitAutograd")
        yield library


def step(
    state: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    state.add_(x)
    return state * 2, (state + x).to(dtype or x.dtype)


def step_out(
    state: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype | None = None, low: torch.Tensor, high: torch.Tensor
) -> None:
    for out, result in zip((low, high), step(state, x, dtype=dtype), strict=True):
        out.copy_(result)


def test_all_operators_without_out_form_are_named_at_once(library: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        ours = torch.ops.export_passes_test
        return ours.first(ours.second(x))

    with pytest.raises(PassError, match=r"export_passes_test\.first\.default, export_passes_test\.second\.default"):
        lower({"f": export(Apply(function), (X,))})


def test_operator_that_writes_state_and_makes_tensors(library: Any, compiled: Callable[..., Any]) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> Any:
            low, _ = torch.ops.export_passes_test.step(self.state, x)
            _, high = torch.ops.export_passes_test.step(self.state, low, dtype=torch.float64)
            return low, high

    eager, module = Steps(), compiled(Steps(), (X,))
    assert module.program.methods[0].operators == ("export_passes_test::step.out",)
    for _ in range(2):
        assert_equal(module.execute("forward", (X,)), eager(X))

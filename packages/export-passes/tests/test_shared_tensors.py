"""Constants and states of several methods: shared by identity and by name, kept apart, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from export_passes import ConstantConflictError, PassError, lower
from export_passes.testing import Apply, Mlp, assert_equal
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import export

X = torch.ones(3)


def plus(values: list[float]) -> Apply:
    return Apply(lambda x: x + torch.tensor(values))


def test_lifted_constants_of_one_name_are_kept_apart(load: Callable[..., Any]) -> None:
    """Two methods, each with a constant that the export calls by the same name."""
    lowered = lower({"f": export(plus([1.0, 2.0, 3.0]), (X,)), "g": export(plus([4.0, 5.0, 6.0]), (X,))})
    assert set(lowered.constants) == {"lifted_tensor_0", "g.lifted_tensor_0"}
    module = load(lowered)
    assert_equal(module.execute("f", (X,)), X + torch.tensor([1.0, 2.0, 3.0]))
    assert_equal(module.execute("g", (X,)), X + torch.tensor([4.0, 5.0, 6.0]))


@pytest.mark.parametrize("other", [torch.tensor([1.0, 2.0]), torch.tensor([1, 2, 3])], ids=["sizes", "dtype"])
def test_lifted_constants_that_differ_in_kind_are_kept_apart(other: torch.Tensor) -> None:
    lowered = lower({"f": export(plus([1.0, 2.0, 3.0]), (X,)), "g": export(Apply(lambda x: x.sum() + other), (X,))})
    assert len(lowered.constants) == 2


def test_equal_lifted_constants_are_one() -> None:
    lowered = lower({"f": export(plus([1.0, 2.0, 3.0]), (X,)), "g": export(plus([1.0, 2.0, 3.0]), (X,))})
    assert set(lowered.constants) == {"lifted_tensor_0"}


def test_weights_of_two_methods_are_stored_once() -> None:
    model, tokens = Mlp(), torch.arange(4)
    lowered = lower({"f": export(model, (tokens,)), "g": export(model, (tokens[:2],))})
    assert set(lowered.constants) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert lowered.constants[name].data_ptr() == tensor.data_ptr()


CONFLICTS: list[tuple[str, Callable[[], Mlp], str]] = [
    ("values", Mlp, "other values"),
    ("sizes", lambda: Mlp(vocabulary=12), r"sizes \(12, 8\), not \(11, 8\)"),
    ("dtype", lambda: Mlp().double(), "torch.float64, not torch.float32"),
]


@pytest.mark.parametrize(("other", "message"), [c[1:] for c in CONFLICTS], ids=[c[0] for c in CONFLICTS])
def test_parameters_that_differ_are_refused(other: Callable[[], Mlp], message: str) -> None:
    tokens = torch.arange(4)
    methods = {"f": export(Mlp(), (tokens,)), "g": export(other(), (tokens,))}
    with pytest.raises(ConstantConflictError, match=f"parameter 'embed.weight' of method 'g' differs.*{message}"):
        lower(methods)


def test_equal_parameters_of_two_modules_are_one() -> None:
    one, tokens = Mlp(), torch.arange(4)
    other = Mlp()
    other.load_state_dict(one.state_dict())
    assert len(lower({"f": export(one, (tokens,)), "g": export(other, (tokens,))}).constants) == 4


def test_tied_weights_are_one_constant(compiled: Callable[..., Any]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    model = Tied()
    module = compiled(model, (torch.arange(3),))
    assert len(module.program.constants) == 1
    fresh = torch.export.export(model, (torch.arange(3),))
    assert set(lower({"f": fresh}).constants) == {"embed.weight"}


def test_unused_parameters_are_left_out() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.used

    assert set(lower({"f": export(Unused(), (X,))}).constants) == {"used"}


def test_fake_weights_are_shared_by_name() -> None:
    with FakeTensorMode() as mode:
        model, tokens = Mlp(), torch.zeros(4, dtype=torch.int64)
        assert isinstance(mode, FakeTensorMode)
    lowered = lower({"f": export(model, (tokens,)), "g": export(model, (tokens,))})
    assert {name: tuple(t.shape) for name, t in lowered.constants.items()} == {
        name: tuple(t.shape) for name, t in model.state_dict().items()
    }


def test_state_of_one_method_is_state_in_all() -> None:
    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

    class Reads(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.count + x

    class Writes(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.count[1:].add_(x[1:])

    program = lower({"reads": export(Reads(), (X,)), "writes": export(Writes(), (X,))}).program
    assert set(program.state) == {"count"}
    assert not program.constants


def test_state_that_shares_memory_with_another_buffer_is_refused() -> None:
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("part", self.whole[1:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.whole.add_(1)
            return self.part + x

    with pytest.raises(PassError, match=r"pass classify_state.*shares memory with another: 'whole' and 'part'"):
        lower({"f": export(Overlapping(), (X,))})

"""Programs of every kind of operator, executed and compared with eager torch bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_core import InputError
from export_passes import lower
from export_passes.testing import Apply, Cache, MethodOf, Mlp, assert_equal
from torch.export import Dim, export
from torch.nn import functional

X = torch.linspace(-2, 2, 24).reshape(4, 6)
Y = torch.linspace(3, -1, 24).reshape(4, 6)
IDS = torch.tensor([2, 0, 3, 2])


def chain_of_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.t().unsqueeze(0).expand(2, 6, 4).permute(2, 0, 1)[1:, :, ::2] + y[0, 0]


def mutated_intermediate(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x + y
    view = h[1:3].t()
    view.mul_(2)
    later = h.sum(0)
    h[0].add_(later)
    return later, h


def alias_outlives_base(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = x * 2
    b = a.view(-1)
    c = y * 3
    b.add_(1)
    d = c + y
    return b + 1, d


def several_results(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, indices = torch.sort(x, dim=1, descending=True)
    top, _ = torch.topk(y, 2, dim=1)
    low, high = torch.aminmax(x, dim=1)
    return values, indices, top, low, high


def lists_of_tensors(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b, c = x.split([1, 2, 3], dim=1)
    return torch.cat([c, a, b], 1), torch.stack([x, y]), x.unbind(0)[2], torch.cat([x.chunk(2, 1)[1], y], 1)


def made_anew(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        torch.zeros(2, 3), torch.ones_like(x), torch.full((3,), float("-inf")), torch.arange(5),
        torch.tensor([1.5, 2.0]) + 1,
        x.new_zeros(4), torch.full_like(x, 7), torch.arange(1, 9, 2, dtype=torch.float32), torch.eye(3),
    )  # fmt: skip


def dtype_changes(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x.to(torch.bfloat16)
    return h, h.float() + y, x.double(), (x > 0).to(torch.int8), x.half().type_as(y), x.to(torch.float32)


def outputs_of_all_kinds(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x + 1
    return h, h, h[1:], x, x[:, 2], y.t()


def masks_and_indices(x: torch.Tensor, y: torch.Tensor) -> Any:
    masked = x.masked_fill(y > 0, float("-inf"))
    picked = x[IDS.new_tensor([1, 3])]
    return masked.softmax(-1), picked, torch.where(x > y, x, y), x[:, None, IDS.new_tensor([0, 5])], x.tril()


def norms(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        functional.layer_norm(x, (6,)),
        functional.rms_norm(x, (6,), y[0]),
        x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    )


def channels_last(x: torch.Tensor, y: torch.Tensor) -> Any:
    image = x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    return image.clone(), (image + 1).contiguous(), image * 2


def in_place_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x * 1
    h.t_()
    h.unsqueeze_(0)
    h.add_(1)
    return h


def written_out_arguments(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = torch.empty(4, 6)
    torch.add(x, y, out=h)
    h[:, 1:3].copy_(y[:, :2])
    h.index_add_(0, torch.tensor([0, 2]), y[:2])
    return h, h.masked_fill_(h > 2, 0)


FUNCTIONS = [
    chain_of_views, mutated_intermediate, alias_outlives_base, several_results, lists_of_tensors, made_anew,
    dtype_changes, outputs_of_all_kinds, masks_and_indices, norms, channels_last, in_place_views,
    written_out_arguments,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_function_equals_eager(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    module = compiled(Apply(function), (X, Y))
    for x, y in ((X, Y), (Y.clone(), X * 3)):
        assert_equal(module.execute("forward", (x, y)), function(x.clone(), y.clone()))


def test_attention_is_taken_apart(compiled: Callable[..., Any]) -> None:
    def attention(x: torch.Tensor, y: torch.Tensor) -> Any:
        q, k, v = (t.reshape(1, 2, 4, 3) for t in (x, y, x - y))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    actual = compiled(Apply(attention), (X, Y)).execute("forward", (Y.clone(), X))
    # Eager torch fuses attention on the host, with roundings of its own.
    torch.testing.assert_close(actual, (attention(Y, X),), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [(1,), (2,), (5,), (16,)], ids=lambda s: f"T{s[0]}")
def test_dynamic_sizes_equal_eager(sizes: tuple[int], compiled: Callable[..., Any]) -> None:
    model = Mlp()

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = model

        def forward(self, tokens: torch.Tensor) -> Any:
            h = self.mlp(tokens)
            a, b = h.chunk(2, -1)
            pairs = torch.cat([h, h + 1], 0)
            return h[-1:], h.reshape(-1), torch.cat([b, a], -1), h.sum(0), h.t() @ h, pairs, pairs[h.shape[0] - 1 :]

    module = compiled(Last(), (torch.arange(7),), dynamic_shapes={"tokens": {0: Dim("T", min=1, max=16)}})
    tokens = torch.arange(sizes[0]) % 11
    assert_equal(module.execute("forward", (tokens,)), Last()(tokens))


def test_input_written_in_place_is_the_callers(compiled: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(y)
        return x * 2

    module = compiled(Apply(function), (X.clone(), Y))
    x = X.clone()
    (doubled,) = module.execute("forward", (x, Y))
    assert_equal([x, doubled], [X + Y, (X + Y) * 2])


def test_methods_share_constants_and_state(load: Callable[..., Any]) -> None:
    model, eager = Cache(), Cache()
    eager.load_state_dict(model.state_dict())
    x, position, row = torch.ones(2, 4), torch.tensor([1, 3]), torch.tensor([3, 0])
    lowered = lower(
        {
            "write": export(model, (x, position)),
            "read": export(MethodOf(model, "read"), (row,)),
            "clear": export(MethodOf(model, "clear"), ()),
        }
    )
    assert set(lowered.program.constants) == {"scale"}
    assert set(lowered.program.state) == {"keys", "count"}
    module = load(lowered)
    for factor in (1.0, -2.0):
        assert_equal(module.execute("write", (x * factor, position)), eager(x * factor, position))
        assert_equal(module.execute("read", (row,)), eager.read(row))
    assert_equal(module.execute("clear"), eager.clear())
    assert_equal(module.execute("read", (row,)), eager.read(row))
    session = module.new_session()
    assert_equal(session.execute("clear"), torch.tensor(0))


def test_state_starts_from_its_values_in_every_session(compiled: Callable[..., Any]) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor([5.0, 7.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count[1:].add_(x)
            return self.count + 0

    module = compiled(Counter(), (torch.ones(1),))
    for _ in range(2):
        session = module.new_session()
        assert_equal(session.execute("forward", (torch.ones(1),)), torch.tensor([5.0, 8.0]))
        assert_equal(session.execute("forward", (torch.ones(1),)), torch.tensor([5.0, 9.0]))


def test_functionalized_export_writes_its_state_back(load: Callable[..., Any]) -> None:
    model, eager = Cache(), Cache()
    x, position = torch.ones(2, 4), torch.tensor([1, 3])
    module = load(lower({"forward": export(model, (x, position)).run_decompositions()}))
    for _ in range(2):
        assert_equal(module.execute("forward", (x, position)), eager(x, position))


def test_exported_program_is_left_as_it_was() -> None:
    exported = export(Cache(), (torch.ones(2, 4), torch.tensor([1, 3])))
    before = str(exported.graph)
    first, second = lower({"f": exported}), lower({"f": exported})
    assert str(exported.graph) == before
    assert first.program == second.program


@pytest.mark.parametrize("bound", [float("inf"), float("-inf")], ids=str)
def test_infinite_argument_is_fixed(compiled: Callable[..., Any], bound: float) -> None:
    def function(x: torch.Tensor, bound: float) -> torch.Tensor:
        return x.clamp(max=bound)

    x = torch.tensor([-1.0, 3.0])
    module = compiled(Apply(function), (x, bound))
    assert_equal(module.execute("forward", (x, bound)), function(x, bound))
    with pytest.raises(InputError, match=f"expected {bound}, as exported, got 1.0"):
        module.execute("forward", (x, 1.0))

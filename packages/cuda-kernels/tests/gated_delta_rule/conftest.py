"""Random inputs of the rule and of the whole net."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape, DeltaNetState, DeltaNetWeights, heads_of_channels
from cuda_kernels.testing import random_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    shape: DeltaNetShape
    weights: DeltaNetWeights
    state: DeltaNetState

    def randomize_state(self) -> None:
        """Fill the state as a run would leave it: equal copies of q and k in the value heads of a key head."""
        slots, width, s = self.state.conv.shape[0], self.shape.conv_width, self.shape
        self.state.conv.copy_(heads_of_channels(torch.randn(slots, width - 1, s.channels), s))
        self.state.recurrent.normal_()

    def clone_state(self) -> DeltaNetState:
        return DeltaNetState(conv=self.state.conv.clone(), recurrent=self.state.recurrent.clone())

    def double(self) -> "Net":
        w = self.weights
        names = ("conv_weight", "a_log", "dt_bias", "norm_weight")
        weights = replace(w, **{name: getattr(w, name).double() for name in names})
        state = DeltaNetState(conv=self.state.conv.double(), recurrent=self.state.recurrent.double())
        return Net(shape=self.shape, weights=weights, state=state)

    def to(self, device: torch.device) -> "Net":
        names = ("conv_weight", "a_log", "dt_bias", "norm_weight")
        weights = replace(self.weights, **{name: getattr(self.weights, name).to(device) for name in names})
        state = self.clone_state()
        state = DeltaNetState(conv=state.conv.to(device), recurrent=state.recurrent.to(device))
        return Net(shape=self.shape, weights=weights, state=state)

    def flat(self, state: DeltaNetState) -> tuple[torch.Tensor, ...]:
        w = self.weights
        return (w.conv_weight, w.a_log, w.dt_bias, w.norm_weight, state.conv, state.recurrent)


RuleInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def make_rule(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype = torch.float32
) -> RuleInputs:
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims
    q = torch.nn.functional.normalize(torch.randn(tokens, key_heads, key_dim), dim=-1) * key_dim**-0.5
    k = torch.nn.functional.normalize(torch.randn(tokens, key_heads, key_dim), dim=-1)
    v = random_tensor(tokens, value_heads, value_dim, dtype=dtype)
    g = -(torch.rand(tokens, value_heads) ** 4)
    return q.to(dtype), k.to(dtype), v, g, torch.rand(tokens, value_heads)


def make_net(
    heads: tuple[int, int], dims: tuple[int, int], *, slots: int = 2, width: int = 4, dtype: torch.dtype = torch.float32
) -> Net:
    shape = DeltaNetShape(
        key_heads=heads[0], value_heads=heads[1], key_dim=dims[0], value_dim=dims[1], conv_width=width
    )
    weights = DeltaNetWeights(
        conv_weight=random_tensor(shape.channels, width, dtype=dtype, scale=0.5),
        a_log=torch.rand(shape.value_heads) * 2 - 2,
        dt_bias=random_tensor(shape.value_heads),
        norm_weight=random_tensor(shape.value_dim, dtype=dtype),
        eps=1e-6,
        key_heads=shape.key_heads,
    )
    state = DeltaNetState(
        conv=torch.zeros(slots, shape.value_heads, width - 1, shape.head_channels, dtype=dtype),
        recurrent=torch.zeros(slots, shape.value_heads, shape.key_dim, shape.value_dim),
    )
    return Net(shape=shape, weights=weights, state=state)


@pytest.fixture
def rule() -> Callable[..., RuleInputs]:
    return make_rule


@pytest.fixture
def net() -> Callable[..., Net]:
    return make_net

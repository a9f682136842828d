"""Random inputs of the rule and of the whole net."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from cuda_kernels.gated_delta_rule.layout import (
    DeltaNetShape,
    DeltaNetState,
    DeltaNetWeights,
    HeadNorm,
    as_heads_read,
)
from cuda_kernels.testing import random_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    shape: DeltaNetShape
    weights: DeltaNetWeights
    norm: HeadNorm
    state: DeltaNetState

    def randomize_state(self) -> None:
        """Fill the state as a run would leave it: equal copies of q and k in the value heads of a key head."""
        slots, width, s = self.state.conv.shape[0], self.shape.conv_width, self.shape
        self.state.conv.copy_(as_heads_read(torch.randn(slots, width, s.channels), s).transpose(1, 2))
        self.state.recurrent.normal_()

    def clone_state(self) -> DeltaNetState:
        return DeltaNetState(conv=self.state.conv.clone(), recurrent=self.state.recurrent.clone())

    def double(self) -> "Net":
        return self._map(torch.Tensor.double)

    def to(self, device: torch.device) -> "Net":
        return self._map(lambda tensor: tensor.to(device, copy=True))

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Net":
        w, state = self.weights, self.state
        weights = replace(w, **{name: change(getattr(w, name)) for name in ("conv_weight", "a_log", "dt_bias")})
        norm = replace(self.norm, weight=change(self.norm.weight))
        state = DeltaNetState(conv=change(state.conv), recurrent=change(state.recurrent))
        return Net(shape=self.shape, weights=weights, norm=norm, state=state)

    def decode_arguments(self, state: DeltaNetState) -> tuple[torch.Tensor, ...]:
        """Return what the decode operator takes between the projection and the positions."""
        w = self.weights
        return (w.conv_weight, w.a_log, w.dt_bias, state.conv, state.recurrent)

    def prefill_arguments(self, state: DeltaNetState) -> tuple[torch.Tensor, ...]:
        """Return what the prefill operator takes between the projection and the start."""
        w = self.weights
        return (w.conv_weight, w.a_log, w.dt_bias, self.norm.weight, state.conv, state.recurrent)


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
        key_heads=shape.key_heads,
    )
    norm = HeadNorm(weight=random_tensor(shape.value_dim, dtype=dtype), eps=1e-6)
    state = DeltaNetState(
        conv=torch.zeros(slots, shape.value_heads, width, shape.head_channels, dtype=dtype),
        recurrent=torch.zeros(slots, shape.value_heads, shape.key_dim, shape.value_dim),
    )
    return Net(shape=shape, weights=weights, norm=norm, state=state)


@pytest.fixture
def rule() -> Callable[..., RuleInputs]:
    return make_rule


@pytest.fixture
def net() -> Callable[..., Net]:
    return make_net

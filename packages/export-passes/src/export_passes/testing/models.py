"""Small models, methods as modules, and comparison bit for bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Apply(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(*args)


class Mlp(nn.Module):
    """Embedding, linear layers and a residual."""

    def __init__(self, vocabulary: int = 11, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a row for each token."""
        h = self.embed(tokens)
        return h + self.down(functional.silu(self.up(h)))


class Cache(nn.Module):
    """A key cache with slots, written at given positions; `read` and `clear` are further methods."""

    keys: torch.Tensor
    count: torch.Tensor

    def __init__(self, slots: int = 3, context: int = 6, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(slots, context, width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Write scaled rows at positions of slot 0, count the call, and return sums."""
        self.keys[0].index_copy_(0, position, x * self.scale)
        self.count.add_(1)
        return self.keys[0].sum(0) + self.count

    def read(self, row: torch.Tensor) -> torch.Tensor:
        """Return rows of slot 0."""
        return self.keys[0].index_select(0, row) * self.scale

    def clear(self) -> torch.Tensor:
        """Forget all keys; return the number of calls so far."""
        self.keys.zero_()
        return self.count.clone()


class Decoder(nn.Module):
    """A decoder of plain operators over a key and value cache: what a planner has to cope with at full depth."""

    def __init__(
        self, *, layers: int, width: int = 64, heads: int = 4, context: int = 64, vocabulary: int = 97
    ) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([_DecoderLayer(width, heads, context) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last of `tokens`, which are at `positions`."""
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h, positions)
        return self.head(functional.rms_norm(h[-1:], h.shape[-1:]))


class _DecoderLayer(nn.Module):
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(heads, context, width // heads))

    def forward(self, h: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = functional.rms_norm(h, h.shape[-1:])
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3).unbind(0)
        self.keys.index_copy_(1, positions, k)
        self.values.index_copy_(1, positions, v)
        seen = torch.arange(self.keys.shape[1], device=h.device) <= positions[:, None]
        scores = (q @ self.keys.mT) * q.shape[-1] ** -0.5
        mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ self.values
        h = h + self.out(mixed.transpose(0, 1).flatten(1))
        gate, up = self.up(functional.rms_norm(h, h.shape[-1:])).chunk(2, -1)
        return h + self.down(functional.silu(gate) * up)


class MethodOf(nn.Module):
    """One method of a module as a module of its own, with names as in the original."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in model.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self._forward = getattr(type(model), method)

    def forward(self, *args: torch.Tensor) -> Any:
        """Call the method."""
        return self._forward(self, *args)


def assert_equal(actual: Any, expected: Any) -> None:
    """Compare the leaves of two results bit for bit, dtype, sizes and NaN included."""
    actual, expected = (torch.utils._pytree.tree_leaves(value) for value in (actual, expected))
    if len(actual) != len(expected):
        raise AssertionError(f"expected {len(expected)} results, got {len(actual)}")
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
        elif a != e:
            raise AssertionError(f"expected {e!r}, got {a!r}")

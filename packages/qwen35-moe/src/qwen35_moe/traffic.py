"""Bytes that one decoded token moves at least, from the program alone: the floor of a decode step."""

import math
from dataclasses import dataclass

import torch
from device_core.schema import types as t

_CACHES = (".k_cache", ".v_cache")
_READ_AND_WRITTEN = ".recurrent_state"
_READ_OR_WRITTEN = ".conv_state"  # a ring: a step writes the one entry that it does not read


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTraffic:
    """Bytes read and written by one step of one sequence.

    weights: all matrices once, of the experts those that are chosen. state: recurrent state, read and written, and the
    ring of the convolution, each entry read or written.
    cache_per_token: keys and values of one earlier token, all layers.
    """

    weights: int
    state: int
    cache_per_token: int

    def at(self, context: int) -> int:
        """Return the bytes of a step with `context` earlier tokens."""
        return self.weights + self.state + self.cache_per_token * context


def decode_traffic(program: t.Program) -> DecodeTraffic:
    """Add up the constants and state that the method `decode` reads."""
    method = next(method for method in program.methods if method.name == "decode")
    storages = [value.storage for value in method.values if isinstance(value, t.TensorValue)]
    constants = dict.fromkeys(s.name for s in storages if isinstance(s, t.Constant))
    state = dict.fromkeys(s.name for s in storages if isinstance(s, t.State))
    fixed = sum(state_traffic(program, name, 0) for name in state)
    return DecodeTraffic(
        weights=sum(constant_traffic(program, name) for name in constants),
        state=fixed,
        cache_per_token=sum(state_traffic(program, name, 1) for name in state) - fixed,
    )


def constant_traffic(program: t.Program, name: str) -> int:
    """Return the bytes of a constant that one token reads: one row of a table, the chosen experts, or all."""
    spec = program.constants[name]
    if ".experts." in name:
        return _nbytes(spec) * int(program.metadata["active_experts"]) // spec.sizes[0]
    if name.endswith((".embedding", ".rope")):
        return _nbytes(spec) // spec.sizes[0]
    return _nbytes(spec)


def state_traffic(program: t.Program, name: str, context: int) -> int:
    """Return the bytes of a state that one token of one sequence moves, with `context` earlier tokens."""
    spec = program.state[name]
    nbytes = _nbytes(spec) // int(program.metadata["slots"])
    if name.endswith(_CACHES):
        return nbytes // spec.sizes[2] * context
    if name.endswith(_READ_AND_WRITTEN):
        return 2 * nbytes
    return nbytes if name.endswith(_READ_OR_WRITTEN) else 0


def _nbytes(spec: t.ConstantSpec | t.StateSpec) -> int:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return math.prod(spec.sizes) * dtype.itemsize

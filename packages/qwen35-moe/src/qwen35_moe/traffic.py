"""Bytes that one decoded token moves at least, from the program alone: the floor of a decode step."""

import math
from dataclasses import dataclass

import torch
from device_core.schema import types as t

_STATE_PER_POSITION = (".k_cache", ".v_cache")
_STATE_WRITTEN_TOO = (".recurrent_state", ".conv_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTraffic:
    """Bytes read and written by one step of one sequence.

    weights: all matrices once, of the experts those that are chosen. state: recurrent state, read and written.
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
    active = int(program.metadata["active_experts"])
    slots = int(program.metadata["slots"])
    state, cache = 0, 0
    for name in dict.fromkeys(s.name for s in storages if isinstance(s, t.State)):
        spec = program.state[name]
        nbytes = _nbytes(spec) // slots
        if name.endswith(_STATE_PER_POSITION):
            cache += nbytes // spec.sizes[2]
        elif name.endswith(_STATE_WRITTEN_TOO):
            state += 2 * nbytes
    return DecodeTraffic(
        weights=sum(_read(name, program.constants[name], active) for name in constants),
        state=state,
        cache_per_token=cache,
    )


def _read(name: str, spec: t.ConstantSpec, active_experts: int) -> int:
    if ".experts." in name:
        return _nbytes(spec) * active_experts // spec.sizes[0]
    if name.endswith((".embedding", ".rope")):
        return _nbytes(spec) // spec.sizes[0]
    return _nbytes(spec)


def _nbytes(spec: t.ConstantSpec | t.StateSpec) -> int:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return math.prod(spec.sizes) * dtype.itemsize

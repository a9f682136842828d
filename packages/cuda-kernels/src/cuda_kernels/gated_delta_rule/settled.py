"""Whether a state may be read while the previous kernel still runs, which hides the time that its bytes take.

A kernel with dependent launch starts before the previous one has finished. Only a kernel that writes the state itself
stands in the way, and of those only the last one that was launched: it began when all before it had finished, and a
graph begins when all before it has.
"""

import torch

from cuda_kernels.gated_delta_rule.layout import DeltaNetState

_Ranges = tuple[tuple[int, int], ...]
_Stream = tuple[torch.device, int]  # the default stream has the same handle on every device

# Addresses of the states that the last kernel of this family writes.
_written: dict[_Stream, _Ranges] = {}


def is_settled(state: DeltaNetState) -> bool:
    """Return whether no kernel that may still run on the current stream writes `state`."""
    written = _written.get(_stream(state), ())
    return not any(a[0] < b[1] and b[0] < a[1] for a in _ranges(state) for b in written)


def note_writer(state: DeltaNetState) -> None:
    """Note that the kernels launched next on the current stream write `state`, and others no more."""
    _written[_stream(state)] = _ranges(state)


def _stream(state: DeltaNetState) -> _Stream:
    stream = torch.cuda.current_stream(state.conv.device)
    return stream.device, stream.cuda_stream


def _ranges(state: DeltaNetState) -> _Ranges:
    return tuple((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (state.conv, state.recurrent))

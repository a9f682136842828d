"""Whether a state may be read while the previous kernel still runs, which hides the time that its bytes take.

A kernel with dependent launch starts before the previous one has finished. Only a kernel that writes the state itself
stands in the way, and of those only the last one that was launched: it began when all before it had finished, and a
graph begins when all before it has.
"""

import torch

from cuda_kernels.gated_delta_rule.layout import DeltaNetState

_Range = tuple[int, int]

# Addresses of the states that the last kernel of this family writes, by stream.
_written: dict[int, tuple[_Range, ...]] = {}


def is_settled(state: DeltaNetState) -> bool:
    """Return whether no running kernel writes `state`, and note that the next one on the current stream does."""
    ranges = tuple((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (state.conv, state.recurrent))
    stream = torch.cuda.current_stream(state.conv.device).cuda_stream
    last = _written.get(stream, ())
    _written[stream] = ranges
    return not any(a[0] < b[1] and b[0] < a[1] for a in ranges for b in last)

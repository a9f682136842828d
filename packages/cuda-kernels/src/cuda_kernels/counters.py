"""Arrival counters: zeros on the device with which the last program of a kernel finds out that it is the last."""

import itertools

import torch

# One call takes the next run of counters, so that kernels of several streams do not meet on the same ones.
_COUNT = 1 << 16
_ALIGNMENT = 4  # 16 bytes, so that a kernel sees pointers of one kind

_buffers: dict[torch.device, torch.Tensor] = {}
_calls = itertools.count()


def arrival_counters(device: torch.device, count: int) -> torch.Tensor:
    """Return `count` int32 zeros; the kernel that takes them adds one a program and leaves zeros behind.

    While a graph is captured before any other call, the zeros are made inside it and cleared by each replay.

    Raises ValueError where `count` is more than there are.
    """
    if count > _COUNT:
        raise ValueError(f"arrival_counters: count: expected at most {_COUNT}, got {count}")
    buffer = _buffers.get(device)
    if buffer is None:
        buffer = torch.zeros(_COUNT, dtype=torch.int32, device=device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return buffer[:count]
        _buffers[device] = buffer
    stride = -(-count // _ALIGNMENT) * _ALIGNMENT
    first = next(_calls) % (_COUNT // stride) * stride
    return buffer[first : first + count]

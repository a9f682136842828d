"""Time calls inside a CUDA graph, where launches cost what they cost in a captured step and Python costs nothing."""

import statistics
from collections.abc import Callable

import torch

L2_NBYTES = 64 << 20  # a little over the L2 of the largest card measured here


def copies_past_l2(nbytes: int, *, most: int = 64) -> int:
    """Return how many copies of `nbytes` of weights must rotate so that each is evicted before its next turn."""
    return max(2, min(most, -(-2 * L2_NBYTES // max(nbytes, 1)) + 1))


def graph_time_us(call: Callable[[int], object], *, copies: int, calls: int = 40, replays: int = 7) -> float:
    """Return the median time of one call in microseconds.

    call: launches the work on copy i of its weights, without synchronizing.
    calls: calls a graph, at least `copies`; 40 unless told, so that the launch of the graph hardly counts.
    """
    count = max(calls, copies)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
        call(copies - 1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i % copies)
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)

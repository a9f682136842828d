"""Benchmarks of the stable sort, against torch's."""

import torch
from cuda_kernels.sort.op import sort_stable
from registry import Benchmark, Work


def stable(rows: int, length: int, dtype: torch.dtype) -> Work:
    """Return a descending sort of rows with few distinct keys."""
    keys = torch.randint(0, 64, (rows, length), device="cuda").to(dtype)
    item = keys.element_size()
    return Work(
        ours=lambda _: sort_stable(keys, 1, descending=True)[1],
        expected=lambda: torch.sort(keys.cpu(), dim=1, descending=True, stable=True).indices.cuda(),
        bound=0.0,
        copies=2,
        nbytes=keys.numel() * (2 * item + 8),
        competitors={"torch": lambda _: torch.sort(keys, dim=1, descending=True, stable=True).indices},
    )


SHAPES = ((1, 64), (1, 1024), (16, 256), (1341, 256), (1024, 1024), (1, 12069), (1, 248320))

BENCHMARKS = (
    Benchmark(
        name="sort.stable",
        shapes={
            f"{rows}x{length}-{str(dtype).removeprefix('torch.')}": {"rows": rows, "length": length, "dtype": dtype}
            for rows, length in SHAPES
            for dtype in (torch.float32, torch.int64)
        },
        build=stable,
    ),
)

"""Programs of the norm kernels: how many runs of a row they take, and with how many warps."""

import triton

RUNS = 4  # runs of the gated norm a program: a head of 128 elements alone would leave most lanes idle


def warps(elements: int) -> int:
    """Return the warps of a program that holds `elements` of a row: eight elements a lane, one to sixteen warps."""
    return max(1, min(16, triton.next_power_of_2(elements) // 256))

"""The sort kernel configurations that ship, for the compile report."""

from cuda_kernels.report import KernelCase
from cuda_kernels.sort.configs import PROGRAM_KEYS, warps
from cuda_kernels.sort.kernels import sort_rows


def _case(dtype: str, length: int) -> KernelCase:
    rows = max(1, PROGRAM_KEYS // length)
    return KernelCase(
        name=f"sort.rows/{dtype}-L{length}",
        kernel=sort_rows,
        signature={"p_keys": f"*{dtype}", "p_values": f"*{dtype}", "p_indices": "*i64", "rows": "i32", "inner": "i32"},
        constexprs={"LENGTH": length, "PADDED": length, "ROWS": rows, "DESCENDING": True},
        num_warps=warps(rows * length),
    )


COMPILE_CASES = (_case("fp32", 1024), _case("bf16", 64))

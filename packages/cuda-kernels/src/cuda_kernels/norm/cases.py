"""The norm kernel configurations that ship, at the shapes of a 35B model, for the compile report."""

from cuda_kernels.norm.configs import RUNS, warps
from cuda_kernels.norm.kernels import rms_norm_gated_kernel, rms_norm_int8_kernel, rms_norm_kernel
from cuda_kernels.report import KernelCase

_WORDS = {"WORDS": 256, "BLOCK_WORDS": 256, "GROUP_WORDS": 16, "UNIT_OFFSET": True}
_QUANTIZED = {"p_x": "*bf16", "p_values": "*i32", "p_scale": "*fp32", "p_group_sum": "*fp32", "eps": "fp32"}

COMPILE_CASES = (
    KernelCase(
        name="norm.rms_norm/D2048",
        kernel=rms_norm_kernel,
        signature={"p_x": "*bf16", "p_weight": "*bf16", "p_out": "*bf16", "eps": "fp32"},
        constexprs={"D": 2048, "BLOCK": 2048, "UNIT_OFFSET": True},
        num_warps=warps(2048),
    ),
    KernelCase(
        name="norm.rms_norm_gated/D128",
        kernel=rms_norm_gated_kernel,
        signature={
            "p_x": "*bf16",
            "p_gate": "*bf16",
            "p_weight": "*fp32",
            "p_out": "*bf16",
            "runs": "i32",
            "eps": "fp32",
        },
        constexprs={"D": 128, "BLOCK": 128, "RUNS": RUNS},
        num_warps=warps(RUNS * 128),
    ),
    KernelCase(
        name="norm.rms_norm_int8/D2048-g128",
        kernel=rms_norm_int8_kernel,
        signature={**_QUANTIZED, "p_weight": "*bf16"},
        constexprs={**_WORDS, "NORM": True},
        num_warps=warps(2048),
    ),
    KernelCase(
        name="linear.quantize_int8/K2048-g128",
        kernel=rms_norm_int8_kernel,
        signature=_QUANTIZED,
        constexprs={**_WORDS, "p_weight": None, "NORM": False},
        num_warps=warps(2048),
    ),
)

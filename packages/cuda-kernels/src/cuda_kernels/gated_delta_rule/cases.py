"""What the compile report compiles of this family: each kernel at the sizes of the 35B model."""

from cuda_kernels.gated_delta_rule.decode import gated_delta_net_decode_kernel
from cuda_kernels.report import KernelCase

_HEADS = {"HK": 16, "HV": 32, "DK": 128, "DV": 128}


def _decode(group: int, *, pdl: bool) -> KernelCase:
    pointers = {
        "p_projection": "*bf16",
        "p_conv_weight": "*bf16",
        "p_a_log": "*fp32",
        "p_dt_bias": "*fp32",
        "p_norm_weight": "*bf16",
        "p_conv_state": "*bf16",
        "p_state": "*fp32",
        "p_slots": "*i64",
        "p_out": "*i32" if group else "*bf16",
    }
    groups = {"p_scale": "*fp32", "p_group_sum": "*fp32"} if group else {}
    return KernelCase(
        name=f"gated_delta_rule.decode/{'int8' if group else 'bf16'}{'-pdl' if pdl else ''}",
        kernel=gated_delta_net_decode_kernel,
        signature={**pointers, **groups, "slots": "i32", "eps": "fp32"},
        constexprs={
            **_HEADS,
            **({} if group else {"p_scale": None, "p_group_sum": None}),
            "W": 4,
            "BLOCK": 128,
            "GROUP": group,
            "PDL": pdl,
        },
        num_warps=16,
        targets=(90, 120) if pdl else (80,),
    )


COMPILE_CASES = tuple(_decode(group, pdl=pdl) for group in (0, 128) for pdl in (True, False))

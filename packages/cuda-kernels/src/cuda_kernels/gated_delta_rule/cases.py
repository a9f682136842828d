"""What the compile report compiles of this family: each kernel at the sizes of the 35B model."""

from cuda_kernels.gated_delta_rule.chunk import CHUNK, chunk_recurrence_kernel
from cuda_kernels.gated_delta_rule.chunk_system import chunk_system_kernel
from cuda_kernels.gated_delta_rule.configs import decode_config, recurrence_config
from cuda_kernels.gated_delta_rule.decode import gated_delta_net_decode_kernel
from cuda_kernels.gated_delta_rule.layout import DeltaNetShape
from cuda_kernels.gated_delta_rule.prefill import (
    ROWS,
    delta_conv_state_kernel,
    delta_inputs_kernel,
    delta_output_kernel,
)
from cuda_kernels.gated_delta_rule.recurrent import recurrent_rule_kernel
from cuda_kernels.report import KernelCase

_HEADS = {"HK": 16, "HV": 32, "DK": 128, "DV": 128}


def _decode(*, pdl: bool) -> KernelCase:
    shape = DeltaNetShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_width=4)
    config = decode_config(shape)
    weights = {"p_conv_weight": "*bf16", "p_a_log": "*fp32", "p_dt_bias": "*fp32"}
    state = {"p_conv_state": "*bf16", "p_state": "*fp32", "p_positions": "*i64", "p_slots": "*i64"}
    return KernelCase(
        name=f"gated_delta_rule.decode/bf16{'-pdl' if pdl else ''}",
        kernel=gated_delta_net_decode_kernel,
        signature={"p_projection": "*bf16", **weights, **state, "p_out": "*bf16", "slots": "i32"},
        constexprs={**_HEADS, "W": 4, "BLOCK_K": 128, "BLOCK_V": config.block_v, "SETTLED": pdl, "PDL": pdl},
        num_warps=config.num_warps,
        targets=(90, 120) if pdl else (80,),
    )


def _system(*, sequences: int, pdl: bool) -> KernelCase:
    pointers = {"p_q": "*bf16", "p_k": "*bf16", "p_g": "*fp32", "p_beta": "*fp32"}
    results = {"p_inverse": "*bf16", "p_attention": "*bf16", "p_from_start": "*fp32", "p_to_end": "*fp32"}
    offsets = {"p_offsets": "*i32"} if sequences else {}
    return KernelCase(
        name=f"gated_delta_rule.chunk_system/{'packed' if sequences else 'single'}{'-pdl' if pdl else ''}",
        kernel=chunk_system_kernel,
        signature={**pointers, **offsets, **results, "tokens": "i32", "sequences": "i32", "factor_stride": "i32"},
        constexprs={
            **({} if sequences else {"p_offsets": None}),
            "HK": 16,
            "HV": 32,
            "DK": 128,
            "BLOCK_K": 128,
            "C": CHUNK,
            "SEQUENCES": sequences,
            "PRECISION": "tf32",
            "PDL": pdl,
        },
        num_warps=4,
        targets=(90, 120) if pdl else (80,),
    )


def _recurrence(target: int, *, slotted: bool) -> KernelCase:
    maps = slotted and target == 90
    config = recurrence_config(128, 2, tensor_maps=maps)
    columns = {"p_q": 128, "p_k": 128, "p_v": config.block_v, "p_out": config.block_v}
    names = ("p_q", "p_k", "p_v", "p_inverse", "p_attention", "p_out")
    rows = {n: f"tensordesc<bf16[{CHUNK}, {columns.get(n, CHUNK)}]>" if maps else "*bf16" for n in names}
    factor = f"tensordesc<fp32[1, {CHUNK}]>" if maps else "*fp32"
    floats = {"p_from_start": factor, "p_to_end": factor, "p_initial": "*fp32", "p_final": "*fp32"}
    chosen = {"p_start": "*i64", "p_slot": "*i64"} if slotted else {"p_offsets": "*i32"}
    absent = ("p_offsets",) if slotted else ("p_start", "p_slot")
    return KernelCase(
        name=f"gated_delta_rule.chunk_recurrence/{'slot' if slotted else 'packed'}-sm_{target}",
        kernel=chunk_recurrence_kernel,
        signature={**rows, **floats, **chosen, "tokens": "i32", "slots": "i32", "factor_stride": "i32"},
        constexprs={
            **dict.fromkeys(absent),
            **_HEADS,
            "BLOCK_K": 128,
            "BLOCK_V": config.block_v,
            "C": CHUNK,
            "TENSOR_MAPS": maps,
            "PRECISION": "tf32",
            "PDL": target >= 90,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        targets=(target,),
    )


def _prefill(*, pdl: bool) -> tuple[KernelCase, ...]:
    weights = {"p_conv_weight": "*bf16", "p_a_log": "*fp32", "p_dt_bias": "*fp32"}
    chosen = {"p_conv_state": "*bf16", "p_start": "*i64", "p_slot": "*i64"}
    rule = {"p_q": "*bf16", "p_k": "*bf16", "p_v": "*bf16", "p_g": "*fp32", "p_beta": "*fp32"}
    sizes = {"tokens": "i32", "slots": "i32"}
    norm = {"p_rule": "*bf16", "p_norm_weight": "*bf16", "p_slot": "*i64", "p_out": "*bf16", "eps": "fp32"}
    kernels = (
        (delta_inputs_kernel, {**weights, **chosen, **rule}, {"W": 4, "BLOCK_D": 128, "ROWS": ROWS}),
        (delta_output_kernel, norm, {"BLOCK_D": 128, "ROWS": ROWS}),
        (delta_conv_state_kernel, chosen, {"W": 4, "BLOCK_W": 4, "BLOCK_C": 512}),
    )
    return tuple(
        KernelCase(
            name=f"gated_delta_rule.{kernel.__name__.removesuffix('_kernel')}/bf16{'-pdl' if pdl else ''}",
            kernel=kernel,
            signature={"p_projection": "*bf16", **signature, **sizes},
            constexprs={**_HEADS, **constexprs, "PDL": pdl},
            targets=(90, 120) if pdl else (80,),
        )
        for kernel, signature, constexprs in kernels
    )


def _recurrent(*, pdl: bool) -> KernelCase:
    rows = {"p_q": "*bf16", "p_k": "*bf16", "p_v": "*bf16", "p_g": "*fp32", "p_beta": "*fp32"}
    return KernelCase(
        name=f"gated_delta_rule.recurrent/bf16{'-pdl' if pdl else ''}",
        kernel=recurrent_rule_kernel,
        signature={**rows, "p_initial": "*fp32", "p_final": "*fp32", "p_out": "*bf16", "tokens": "i32"},
        constexprs={**_HEADS, "BLOCK_K": 128, "BLOCK_V": 32, "PDL": pdl},
        targets=(90, 120) if pdl else (80,),
    )


COMPILE_CASES = (
    *(_decode(pdl=pdl) for pdl in (True, False)),
    *(_system(sequences=n, pdl=pdl) for n in (0, 4) for pdl in (True, False)),
    *(_recurrence(target, slotted=slotted) for slotted in (True, False) for target in (80, 90, 120)),
    *(_recurrent(pdl=pdl) for pdl in (True, False)),
    *(case for pdl in (True, False) for case in _prefill(pdl=pdl)),
)

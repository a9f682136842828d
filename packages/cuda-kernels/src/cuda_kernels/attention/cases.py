"""The shipped attention kernel configurations, for the compile report."""

from collections.abc import Iterator

from cuda_kernels.attention.configs import decode_config, prefill_config
from cuda_kernels.attention.decode import attention_combine_kernel, attention_split_kernel
from cuda_kernels.attention.layout import Sizes
from cuda_kernels.attention.prefill import attention_prefill_kernel, attention_prepare_kernel
from cuda_kernels.report import KernelCase
from cuda_kernels.report.compiler import SHARED_LIMITS

_PLACE = {"tokens": "i32", "slots": "i32", "context": "i32"}


def _sizes(rows: int, head_size: int) -> Sizes:
    return Sizes(rows=rows, query_heads=16, kv_heads=2, head_size=head_size, context=4096, slots=1, rotary=64)


def _decode_cases(head_size: int) -> Iterator[KernelCase]:
    config = decode_config(_sizes(1, head_size))
    shape = {"Q": 16, "G": 2, "D": head_size, "SPLITS": config.splits, "BLOCK_N": config.block_keys}
    place = {"p_positions": "*i64", "p_slots": "*i64", "slots": "i32", "context": "i32"}
    parts = {"p_qkv": "*bf16", "p_acc": "*fp32", "p_max": "*fp32", "p_sum": "*fp32"}
    caches = {"p_k_cache": "*bf16", "p_v_cache": "*bf16", "p_q_norm": "*bf16", "p_k_norm": "*bf16", "p_rope": "*fp32"}
    yield KernelCase(
        name=f"attention.split/D{head_size}",
        kernel=attention_split_kernel,
        signature={**parts, **caches, **place, "eps": "fp32"},
        constexprs={**shape, "ROTARY": 64, "BLOCK_H": config.block_heads},
        num_warps=config.warps,
        num_stages=config.stages,
    )
    for group in (0, 32, 128):
        result = {"p_out": "*i32", "p_scale": "*fp32", "p_group_sum": "*fp32"} if group else {"p_out": "*bf16"}
        unused = {} if group else {"p_scale": None, "p_group_sum": None}
        yield KernelCase(
            name=f"attention.combine/D{head_size}-{f'int8g{group}' if group else 'bf16'}",
            kernel=attention_combine_kernel,
            signature={**parts, **place, **result},
            constexprs={**shape, **unused, "COLUMNS": group or config.columns, "GROUP": group},
            num_warps=config.combine_warps,
        )


def _prefill_case(rows: int, head_size: int, dtype: str, target: int) -> KernelCase:
    config = prefill_config(_sizes(rows, head_size), 4 if dtype == "fp32" else 2, SHARED_LIMITS[target])
    shape = {"Q": 16, "G": 2, "D": head_size}
    place = {"p_start": "*i64", "p_slot": "*i64", **_PLACE}
    keys, edge = (f"tensordesc<{dtype}[{n}, {head_size}]>" for n in (config.block_keys, config.edge_keys))
    name = f"D{head_size}-{dtype}-T{rows}"
    return KernelCase(
        name=f"attention.prefill/{name}",
        kernel=attention_prefill_kernel,
        signature={
            "t_q": f"tensordesc<{dtype}[{config.block_rows}, {head_size}]>",
            "t_k": keys,
            "t_v": keys,
            "t_k_edge": edge,
            "t_v_edge": edge,
            "p_qkv": f"*{dtype}",
            "p_out": f"*{dtype}",
            **place,
        },
        constexprs={
            **shape,
            "BLOCK_M": config.block_rows,
            "BLOCK_N": config.block_keys,
            "EDGE_N": config.edge_keys,
            "PARTS": config.gate_parts,
        },
        num_warps=config.warps,
        num_stages=config.stages,
        targets=(target,),
    )


def _prepare_case(head_size: int, dtype: str) -> KernelCase:
    return KernelCase(
        name=f"attention.prepare/D{head_size}-{dtype}",
        kernel=attention_prepare_kernel,
        signature={
            **dict.fromkeys(("p_qkv", "p_q_norm", "p_k_norm", "p_k_cache", "p_v_cache", "p_q"), f"*{dtype}"),
            "p_rope": "*fp32",
            "eps": "fp32",
            "p_start": "*i64",
            "p_slot": "*i64",
            **_PLACE,
        },
        constexprs={"Q": 16, "G": 2, "D": head_size, "ROTARY": 64, "BLOCK_T": 8},
    )


COMPILE_CASES: tuple[KernelCase, ...] = (
    *_decode_cases(256),
    *_decode_cases(64),
    *(_prepare_case(size, "bf16") for size in (64, 256)),
    # Tuned for the accumulators of sm_90; older and smaller devices run these tiles too, but spill at heads of 256.
    *(_prefill_case(rows, 256, "bf16", 90) for rows in (4, 1341)),
    *(_prefill_case(1341, 64, "bf16", target) for target in (90, 120)),
    _prefill_case(1341, 128, "bf16", 90),
    _prefill_case(1341, 64, "fp32", 90),
)

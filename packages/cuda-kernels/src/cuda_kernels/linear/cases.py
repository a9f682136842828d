"""The kernel configurations of the linear family that ship, at the shapes of a 35B model, for the compile report."""

from collections.abc import Iterator

from cuda_kernels.linear import configs
from cuda_kernels.linear.dequantize import dequantize_rows_kernel, dequantize_weight_kernel
from cuda_kernels.linear.matmul import matmul_int8_kernel, matmul_kernel
from cuda_kernels.linear.matvec import matvec_int8_kernel, matvec_kernel
from cuda_kernels.linear.norm_matvec import norm_matvec_kernel
from cuda_kernels.linear.routed_launch import LOGITS
from cuda_kernels.linear.routed_matvec import routed_matvec_kernel
from cuda_kernels.report import KernelCase

GROUP = 128

_WEIGHT = {"p_scales": "*bf16", "p_out": "*bf16", "N": "i32"}
_INT8 = {"p_scale": "*fp32", **_WEIGHT}


def _vectors() -> Iterator[KernelCase]:
    for outputs, columns in ((12352, 2048), (2048, 4096), (248320, 2048)):
        for rows in (1, 2, 4, 8):
            if not configs.prefers_vector(rows, outputs):
                continue
            strip = configs.matvec_strip(rows, outputs, columns // 8)
            yield KernelCase(
                name=f"linear.matvec_int8/T{rows}-N{outputs}-K{columns}",
                kernel=matvec_int8_kernel,
                signature={"p_values": "*i32", "p_weight": "*i32", "rows": "i32", **_INT8},
                constexprs={
                    "W": columns // 8,
                    "GROUP": GROUP // 8,
                    "ROWS": rows,
                    "BLOCK_N": strip.block_n,
                    "BLOCK_W": strip.block_words,
                    "p_residual": None,
                },
                num_warps=strip.num_warps,
            )


def _norms() -> Iterator[KernelCase]:
    for outputs, columns, is_gated in ((12352, 2048, False), (2048, 4096, True)):
        strip = configs.norm_strip(outputs, columns // 8)
        gated = {"p_gate": "*bf16", "p_residual": "*bf16"}
        yield KernelCase(
            name=f"linear.norm_matvec/N{outputs}-K{columns}{'-gated' if is_gated else ''}",
            kernel=norm_matvec_kernel,
            signature={
                "p_x": "*bf16", "p_norm": "*bf16", "p_weight": "*i32", "eps": "fp32",
                **_WEIGHT, **(gated if is_gated else {}),
            },
            constexprs={
                "W": columns // 8,
                "RUN": GROUP // 8 if is_gated else columns // 8,
                "GROUP": GROUP // 8,
                "BLOCK_N": strip.block_n,
                "BLOCK_W": strip.block_words,
                **({} if is_gated else dict.fromkeys(gated)),
            },
            num_warps=strip.num_warps,
        )  # fmt: skip


def _routed() -> Iterator[KernelCase]:
    outputs, columns = 2048, 4096
    strip = configs.norm_strip(outputs, columns // 8)
    norm = {"p_gate": "*bf16", "p_norm": "*bf16"}
    for is_gated in (True, False):
        yield KernelCase(
            name=f"linear.routed_matvec/N{outputs}-K{columns}-{'gated' if is_gated else 'plain'}",
            kernel=routed_matvec_kernel,
            signature={
                "p_x": "*bf16", "p_weight": "*i32", "p_residual": "*bf16", "p_router": "*fp16", "p_logits": "*fp32",
                "eps": "fp32", **_WEIGHT, **(norm if is_gated else {}),
            },
            constexprs={
                "E": 257,
                "W": columns // 8,
                "RUN": GROUP // 8,
                "GROUP": GROUP // 8,
                "BLOCK_N": strip.block_n,
                "BLOCK_W": strip.block_words,
                "BLOCK_R": outputs,
                "BLOCK_E": LOGITS,
                **({} if is_gated else dict.fromkeys(norm)),
            },
            num_warps=strip.num_warps,
        )  # fmt: skip


def _tiles() -> Iterator[KernelCase]:
    for tokens, outputs in ((16, 2048), (16, 9216), (32, 9216), (64, 9216), (128, 9216)):
        tile = configs.matmul_tile(tokens, outputs)
        for name, kernel, signature in (
            ("matmul_int8", matmul_int8_kernel, {"p_values": "*i8", **_INT8}),
            ("matmul", matmul_kernel, {"p_x": "*bf16", **_WEIGHT}),
        ):
            yield KernelCase(
                name=f"linear.{name}/T{tokens}-N{outputs}-K2048",
                kernel=kernel,
                signature={**signature, "p_weight": "*u8", "T": "i32"},
                constexprs={
                    "K": 2048,
                    "GROUP": GROUP,
                    "BLOCK_N": tile.block_n,
                    "BLOCK_T": tile.block_t,
                    "p_residual": None,
                },
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
                aligned=(*(n for n, kind in signature.items() if kind.startswith("*")), "p_weight", "N"),
            )


COMPILE_CASES = (
    *_vectors(),
    *_norms(),
    *_routed(),
    KernelCase(
        name="linear.matvec/T1-K2048",
        kernel=matvec_kernel,
        signature={"p_x": "*bf16", "p_weight": "*i32", "rows": "i32", **_WEIGHT},
        constexprs={"W": 256, "GROUP": GROUP // 8, "ROWS": 1, "BLOCK_N": 8, "BLOCK_W": 256, "p_residual": None},
    ),
    *_tiles(),
    KernelCase(
        name="linear.dequantize_weight/K2048",
        kernel=dequantize_weight_kernel,
        signature={"p_weight": "*u8", **_WEIGHT},
        constexprs={"K": 2048, "GROUP": GROUP, "BLOCK_N": 64},
    ),
    KernelCase(
        name="linear.dequantize_rows/K2048",
        kernel=dequantize_rows_kernel,
        signature={"p_values": "*i8", "p_scale": "*fp32", "p_out": "*bf16", "T": "i32"},
        constexprs={"K": 2048, "GROUP": GROUP, "BLOCK_T": 32},
    ),
)

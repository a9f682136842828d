"""The mixture-of-experts kernel configurations that ship, at the shapes of a 35B model, for the compile report."""

from collections.abc import Iterator
from typing import Any

from cuda_kernels.moe import align, decode, grouped, routed, router
from cuda_kernels.moe.combine import combine
from cuda_kernels.moe.configs import decode_config, float_grouped_config, int8_grouped_config, router_config
from cuda_kernels.report import KernelCase
from cuda_kernels.report.compiler import SHARED_LIMITS

EXPERTS, TOP_K, HIDDEN, WIDTH, GROUP = 257, 8, 2048, 512, 128
SLOTS = TOP_K + 1

_ROUTING = {"p_ids": "*i32", "p_weights": "*fp32"}


def _decode() -> Iterator[KernelCase]:
    sizes = {"EXPERTS": EXPERTS, "SLOTS": SLOTS, "HIDDEN": HIDDEN, "WIDTH": WIDTH, "GROUP": GROUP}
    weight = {"p_weight": "*i32", "p_weight_scale": "*bf16", "p_ids": "*i32"}
    for int8 in (True, False):
        label = "int8" if int8 else "float"
        config = decode_config("int8" if int8 else "int4", 1)
        rows = {"p_x": "*i32", "p_x_scale": "*fp32"} if int8 else {"p_x": "*bf16"}
        h = {"p_h": "*i32", "p_h_scale": "*fp32"} if int8 else {"p_h": "*fp32"}
        unused: dict[str, Any] = {} if int8 else {"p_h_scale": None}
        yield KernelCase(
            name=f"moe.gate_up/{label}",
            kernel=decode.gate_up,
            signature={**rows, **h, **weight},
            constexprs={
                **sizes,
                **unused,
                **({} if int8 else {"p_x_scale": None}),
                "INT8": int8,
                "BLOCK": config.gate_up_block,
                "PADDED": HIDDEN // 8,
            },
            num_warps=config.gate_up_warps,
        )
        yield KernelCase(
            name=f"moe.down/{label}",
            kernel=decode.down,
            signature={**h, **weight, "p_weights": "*fp32", "p_residual": "*bf16", "p_out": "*bf16"},
            constexprs={
                **sizes,
                **unused,
                "INT8": int8,
                "H_BLOCK": config.gate_up_block,
                "BLOCK": config.down_block,
                "MOST": 8,
                "REST": 1,
                "PADDED": WIDTH // 8,
            },
            num_warps=config.down_warps,
        )


def _routed() -> Iterator[KernelCase]:
    config = decode_config("int8", 1)
    sizes = {"EXPERTS": EXPERTS - 1, "TOP_K": TOP_K, "SHARED": 1, "HIDDEN": HIDDEN, "WIDTH": WIDTH, "GROUP": GROUP}
    tensors = {
        "p_x": "*bf16", "p_logits": "*fp32", "p_h": "*i32", "p_h_scale": "*fp32", "p_weight": "*i32",
        "p_weight_scale": "*bf16", "eps": "fp32",
    }  # fmt: skip
    yield KernelCase(
        name="moe.routed_gate_up/int8",
        kernel=routed.routed_gate_up,
        signature={**tensors, "p_norm": "*bf16"},
        constexprs={**sizes, "BLOCK": config.gate_up_block, "PADDED": HIDDEN // 8, "PADDED_EXPERTS": 256},
        num_warps=config.gate_up_warps,
    )
    yield KernelCase(
        name="moe.routed_down/int8",
        kernel=routed.routed_down,
        signature={**tensors, "p_out": "*bf16"},
        constexprs={
            **sizes,
            "H_BLOCK": config.gate_up_block,
            "BLOCK": config.down_block,
            "MOST": 8,
            "REST": 1,
            "PADDED": WIDTH // 8,
            "PADDED_HIDDEN": HIDDEN,
            "PADDED_EXPERTS": 256,
        },
        num_warps=config.down_warps,
    )


def _grouped(kind: str, tokens: int) -> Iterator[KernelCase]:
    pairs = tokens * SLOTS
    config = (
        int8_grouped_config(pairs, EXPERTS, WIDTH, GROUP)
        if kind == "int8"
        else float_grouped_config(pairs, EXPERTS, WIDTH)
    )
    int8, dense = kind == "int8", kind == "dense"
    rows = "*i8" if int8 else "*bf16"
    weight = {"p_weight": "*bf16"} if dense else {"p_weight": "*u8", "p_weight_scale": "*bf16"}
    order = {"p_sorted": "*i32", "p_expert": "*i32", "pairs": "i32"}
    sizes: dict[str, Any] = {
        "HIDDEN": HIDDEN,
        "WIDTH": WIDTH,
        "GROUP": 1 if dense else GROUP,
        "KIND": kind,
        "PAIR_BLOCK": config.pair_block,
        **({"p_weight_scale": None} if dense else {}),
        **({} if int8 else {"p_h_scale": None}),
    }
    h = {"p_h": rows, "p_h_scale": "*fp32"} if int8 else {"p_h": rows}
    yield KernelCase(
        name=f"moe.gate_up_blocks/{kind}-T{tokens}",
        kernel=grouped.gate_up_blocks,
        signature={**h, **weight, **order, "p_x": rows, **({"p_x_scale": "*fp32"} if int8 else {})},
        constexprs={
            **sizes,
            **({} if int8 else {"p_x_scale": None}),
            "SLOTS": SLOTS,
            "STEP": 64 if dense else GROUP,
            "ROW_BLOCK": config.gate_up.rows,
            "STEPS": config.gate_up.steps,
            "STAGES": config.gate_up.stages,
        },
        num_warps=config.gate_up.warps,
        registers=config.gate_up.registers,
        # Below and above compute capability 9 this tile spills with floating-point rows.
        targets=(90,) if kind == "int4" and tokens > 1000 else (80, 90, 120),
    )
    yield KernelCase(
        name=f"moe.down_blocks/{kind}-T{tokens}",
        kernel=grouped.down_blocks,
        signature={**h, **weight, **order, "p_weights": "*fp32", "p_y": "*bf16"},
        constexprs={
            **sizes,
            "STEP": config.gate_up.rows if int8 else 64 if dense else GROUP,
            "ROW_BLOCK": config.down.rows,
            "STEPS": config.down.steps,
            "STAGES": config.down.stages,
        },
        num_warps=config.down.warps,
        registers=config.down.registers,
    )


def _routing() -> Iterator[KernelCase]:
    sizes: dict[str, Any] = {
        "EXPERTS": EXPERTS - 1,
        "TOP_K": TOP_K,
        "SHARED": 1,
        "HIDDEN": HIDDEN,
        "GROUP": GROUP,
        "PADDED_EXPERTS": 256,
        "PADDED_SLOTS": 16,
    }
    rows = {"p_values": "*i32", "p_scale": "*fp32", "p_group_sum": "*fp32"}
    common = {"p_x": "*bf16", "p_norm": "*bf16", "eps": "fp32", "p_weight": "*bf16", **_ROUTING, **rows}
    few = router_config(1, SHARED_LIMITS[90])
    yield KernelCase(
        name="moe.route_rows/int8",
        kernel=router.route_rows,
        signature={**common, "p_messages": "*i32"},
        constexprs={**sizes, "BLOCK": few.block, "PADDED_HIDDEN": HIDDEN},
        num_warps=few.warps,
    )
    for targets in ((90,), (80, 120)):
        many = router_config(1341, SHARED_LIMITS[targets[0]])
        yield KernelCase(
            name=f"moe.route_blocks/int8-stages{many.stages}",
            kernel=router.route_blocks,
            signature={**common, "tokens": "i32"},
            constexprs={**sizes, "BLOCK": many.block},
            num_warps=many.warps,
            num_stages=many.stages,
            targets=targets,
        )


def _align() -> Iterator[KernelCase]:
    order = {"p_sorted": "*i32", "p_expert": "*i32"}
    chunk: dict[str, Any] = {"EXPERTS": EXPERTS, "PADDED": 512, "CHUNK": 128}
    yield KernelCase(
        name="moe.count",
        kernel=align.count,
        signature={
            **order,
            **dict.fromkeys(("p_ids", "p_counts", "p_totals"), "*i32"),
            **dict.fromkeys(("pairs", "capacity", "blocks"), "i32"),
        },
        constexprs=chunk,
    )
    yield KernelCase(
        name="moe.place_experts",
        kernel=align.place_experts,
        signature={
            **dict.fromkeys(("p_counts", "p_totals", "p_expert", "p_padded"), "*i32"),
            "chunks": "i32",
        },
        constexprs={"EXPERTS": EXPERTS, "PADDED": 512, "BLOCK": 64, "EXPERT_BLOCK": 16, "CHUNK_BLOCK": 64},
    )
    yield KernelCase(
        name="moe.scatter",
        kernel=align.scatter,
        signature={
            **dict.fromkeys(("p_ids", "p_places", "p_totals", "p_sorted"), "*i32"),
            **dict.fromkeys(("p_scale", "p_sorted_scale"), "*fp32"),
            "pairs": "i32",
        },
        constexprs={**chunk, "SLOTS": SLOTS, "GROUPS": HIDDEN // GROUP, "BLOCK": 64},
    )
    yield KernelCase(
        name="moe.combine",
        kernel=combine,
        signature={"p_y": "*bf16", "p_ids": "*i32", "p_residual": "*bf16", "p_out": "*bf16"},
        constexprs={"EXPERTS": EXPERTS, "SLOTS": SLOTS, "HIDDEN": HIDDEN, "BLOCK": 1024},
    )


COMPILE_CASES: tuple[KernelCase, ...] = (
    *_decode(),
    *_routed(),
    *(case for tokens in (64, 512, 1341) for case in _grouped("int8", tokens)),
    *(case for kind in ("int4", "dense") for tokens in (64, 1341) for case in _grouped(kind, tokens)),
    *_routing(),
    *_align(),
)

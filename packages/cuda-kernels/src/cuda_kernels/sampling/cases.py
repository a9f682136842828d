"""The shipped sampling kernel configurations, for the compile report."""

import triton

from cuda_kernels.report import KernelCase
from cuda_kernels.sampling.choose import sample_choose_kernel
from cuda_kernels.sampling.configs import BLOCK_TOKENS, BLOCK_VOCABULARY, CONFIG
from cuda_kernels.sampling.history import mark_prompt_kernel
from cuda_kernels.sampling.scan import sample_scan_kernel

VOCABULARY = 248_320

_ROW = {
    **dict.fromkeys(("p_temperature", "p_top_p", "p_min_p"), "*fp32"),
    **dict.fromkeys(("p_top_k", "p_slots"), "*i64"),
    "p_history": "*i32",
    "slots": "i32",
    "vocabulary": "i32",
    "vocab_size": "i32",
}
_SCANNED = {"p_best": "*i64", **dict.fromkeys(("p_x", "p_score", "p_peaks", "p_top", "p_mass"), "*fp32")}
_TILES = {"BLOCK": CONFIG.block, "GROUP": CONFIG.group}

COMPILE_CASES: tuple[KernelCase, ...] = (
    KernelCase(
        name="sampling.scan",
        kernel=sample_scan_kernel,
        signature={
            **dict.fromkeys(("p_logits", "p_presence", "p_frequency", "p_repetition"), "*fp32"),
            **dict.fromkeys(("p_seeds", "p_positions"), "*i64"),
            **_ROW,
            **_SCANNED,
        },
        constexprs=_TILES,
        num_warps=CONFIG.scan_warps,
    ),
    KernelCase(
        name=f"sampling.choose/V{VOCABULARY}",
        kernel=sample_choose_kernel,
        signature={
            **_ROW,
            **_SCANNED,
            "p_group": "*i32",
            "p_value": "*fp32",
            "p_token": "*i32",
            "p_out": "*i64",
            "blocks": "i32",
        },
        constexprs={
            **_TILES,
            "BLOCKS": triton.next_power_of_2(triton.cdiv(VOCABULARY, CONFIG.block)),
            "MOST": CONFIG.most,
            "LIST": CONFIG.list_size,
            "ROW_BLOCK": CONFIG.row_block,
        },
        num_warps=CONFIG.choose_warps,
    ),
    KernelCase(
        name="sampling.mark_prompt",
        kernel=mark_prompt_kernel,
        signature={
            **dict.fromkeys(("p_tokens", "p_start", "p_slot"), "*i64"),
            "p_history": "*i32",
            "tokens": "i32",
            "slots": "i32",
            "vocabulary": "i32",
        },
        constexprs={"BLOCK_V": BLOCK_VOCABULARY, "BLOCK_T": BLOCK_TOKENS},
    ),
)

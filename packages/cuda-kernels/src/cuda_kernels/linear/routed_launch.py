"""Launches of a product with its residual and of the logits of the router behind it."""

import torch
import triton

from cuda_kernels.checks import new_int8_rows
from cuda_kernels.linear import configs
from cuda_kernels.linear.launch import int4_linear_int8, quantize_int8
from cuda_kernels.linear.norm_launch import is_power_of_two_run
from cuda_kernels.linear.routed_matvec import routed_matvec_kernel
from cuda_kernels.norm.launch import rms_norm_gated
from cuda_kernels.primitives import has_dependent_launch

LOGITS = 2  # a program


def int4_linear_router_int8(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    router: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Fill `out` with the product and the residual, and `logits`: one kernel for one row, several for more."""
    outputs, words = out.shape[1], weight.shape[1] // 4
    run = words if norm_weight is None else norm_weight.shape[0] // 8
    is_joined = norm_weight is None or is_power_of_two_run(norm_weight)
    if is_joined and configs.prefers_joined_norm(out.shape[0], outputs, words):
        _one_row(x, gate, norm_weight, eps, weight, scales, residual, router, run, out, logits)
        return
    rows = x.to(torch.float32)
    if norm_weight is not None and gate is not None:
        rows = torch.empty_like(rows)
        rms_norm_gated(x, gate, norm_weight, eps, out=rows)
    group = x.shape[1] // scales.shape[1]
    values, scale, group_sum = new_int8_rows("int4_linear_router_int8", x, x.shape[1], group)
    quantize_int8(rows, group, values=values, scale=scale, group_sum=group_sum)
    int4_linear_int8(values, scale, group_sum, weight, scales, residual, out_dtype, out=out)
    torch.mm(torch.cat((residual.to(torch.float32), rows), 1), router.to(torch.float32).T, out=logits)


def _one_row(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    router: torch.Tensor,
    run: int,
    out: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    outputs, words, experts = out.shape[1], weight.shape[1] // 4, router.shape[0]
    strip = configs.norm_strip(outputs, words)
    pdl = has_dependent_launch(x.device)
    grid = triton.cdiv(outputs, strip.block_n) + triton.cdiv(experts, LOGITS)
    routed_matvec_kernel[(grid,)](
        p_x=x,
        p_gate=gate,
        p_norm=norm_weight,
        p_weight=weight.view(torch.int32),
        p_scales=scales,
        p_residual=residual,
        p_out=out,
        p_router=router,
        p_logits=logits,
        eps=eps,
        N=outputs,
        E=experts,
        W=words,
        RUN=run,
        GROUP=words // scales.shape[1],
        BLOCK_N=strip.block_n,
        BLOCK_W=strip.block_words,
        BLOCK_R=triton.next_power_of_2(outputs),
        BLOCK_E=LOGITS,
        PDL=pdl,
        num_warps=strip.num_warps,
        launch_pdl=pdl,
    )

"""Launches of a product with its residual and of the logits of the router behind it."""

import torch
import triton

from cuda_kernels.linear import configs
from cuda_kernels.linear.norm_launch import gated_rows, is_power_of_two_run, multiply_rows, strip_arguments
from cuda_kernels.linear.routed_matvec import routed_matvec_kernel

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
    outputs, words, experts = out.shape[1], weight.shape[1] // 4, router.shape[0]
    is_joined = norm_weight is None or is_power_of_two_run(norm_weight)
    if is_joined and configs.prefers_joined_norm(out.shape[0], outputs, words):
        strip = configs.norm_strip(outputs, words)
        routed_matvec_kernel[(triton.cdiv(outputs, strip.block_n) + triton.cdiv(experts, LOGITS),)](
            p_router=router,
            p_logits=logits,
            E=experts,
            BLOCK_R=triton.next_power_of_2(outputs),
            BLOCK_E=LOGITS,
            **strip_arguments(x, gate, norm_weight, eps, weight, scales, residual, out, strip),
        )
        return
    if gate is not None and norm_weight is not None:
        rows = gated_rows(x, gate, norm_weight, eps)
    else:
        rows = x.to(torch.float32)
    multiply_rows("int4_linear_router_int8", rows, weight, scales, residual, out)
    torch.mm(torch.cat((residual.to(torch.float32), rows), 1), router.to(torch.float32).T, out=logits)

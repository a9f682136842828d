"""Argument checks that the operators of the family share."""

from cuda_kernels.checks import check
from cuda_kernels.moe.layout import routed_experts


def check_choice(operator: str, rows: int, top_k: int, shared_experts: int) -> None:
    """Check the numbers by which a router with `rows` logits a token chooses."""
    check(shared_experts >= 0, operator, "shared_experts", "at least 0", shared_experts)
    experts = routed_experts(rows, shared_experts)
    check(1 <= top_k <= experts, operator, "top_k", f"a number of experts in [1, {experts}]", top_k)

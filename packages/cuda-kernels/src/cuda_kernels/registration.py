"""The list of all operators, and `register()`, which puts them into torch."""

import torch

from cuda_kernels import library
from cuda_kernels.attention import op as attention
from cuda_kernels.gated_delta_rule import op as gated_delta_rule
from cuda_kernels.linear import op as linear
from cuda_kernels.moe import op as moe
from cuda_kernels.norm import op as norm
from cuda_kernels.sampling import op as sampling
from cuda_kernels.sort import op as sort

# Each family's op.py has OPERATORS, and COMPILE_CASES: what `cuda_kernels.report` compiles.
FAMILIES = (attention, gated_delta_rule, linear, moe, norm, sampling, sort)

OPERATORS: tuple[library.Operator, ...] = tuple(operator for family in FAMILIES for operator in family.OPERATORS)

_registered: torch.library.Library | None = None


def register() -> None:
    """Register every operator under `torch.ops.cuda_kernels`; calling it again does nothing."""
    global _registered
    if _registered is None:
        fragment = torch.library.Library(library.NAMESPACE, "DEF")
        for operator in OPERATORS:
            library.define(fragment, operator)
        _registered = fragment

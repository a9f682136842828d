"""Muon: momentum whose every matrix is made nearly orthogonal before it is applied (https://kellerjordan.github.io/posts/muon).

Written here since torch's takes neither stacks of matrices, which experts are, nor a rate that a captured step reads.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """Matrices, or stacks of them, with a rate that may be a tensor on their device."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        rate: Tensor | float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every matrix that has a gradient; Nesterov's form of momentum."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                moment = state["momentum"].mul_(group["momentum"]).add_(matrix.grad)
                update = orthogonal(matrix.grad + group["momentum"] * moment)
                # So that an update changes a row's product alike, whatever the shape of the matrix.
                scale = max(1.0, matrix.shape[-2] / matrix.shape[-1]) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update * (scale * group["lr"]))


def orthogonal(matrices: Tensor) -> Tensor:
    """Return (…, M, N) with the singular vectors of `matrices` and singular values near 1: Newton-Schulz iteration."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + _TINY)
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x

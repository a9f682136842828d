"""Rotary position embedding as one table, which the attention operators read.

For text alone the family's multi-axis rotary equals the plain one: all axes hold the same position.
Source: Su et al., 2021, arXiv:2104.09864.
"""

import torch


def rope_table(positions: int, rotary_dim: int, theta: float, dtype: torch.dtype) -> torch.Tensor:
    """Return cos and then sin of position · theta^(-2i / R), `(positions, R) float32`.

    Each entry is rounded to `dtype`, in which the model was trained to see it, and stored as float32.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    angles = torch.arange(positions, dtype=torch.float32).unsqueeze(1) * (1.0 / theta**exponents)
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype).to(torch.float32)

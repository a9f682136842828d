"""Stable sort in plain torch."""

import torch


def sort_stable(keys: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (values, indices) along `dim`; ties in input order both ways, NaN larger than every number."""
    values, indices = torch.sort(keys, dim=dim, descending=descending, stable=True)
    return values.contiguous(), indices.contiguous()

"""The dtypes that programs may use, by their names in torch."""

from typing import Final

import torch

_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "complex64",
)  # fmt: skip

DTYPES: Final[dict[str, torch.dtype]] = {name: getattr(torch, name) for name in _NAMES}
"""Name to torch dtype."""

NAMES: Final[dict[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}
"""torch dtype to name."""


def itemsize(name: str) -> int:
    """Return the bytes of one element of the dtype called `name`."""
    return DTYPES[name].itemsize

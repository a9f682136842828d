"""Constants as safetensors files: streamed into shards when written, mapped into memory when read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open

from device_core.schema.dtypes import NAMES

HEADER_NBYTES = 64 * 1024 - 8
"""Room for the names of a shard ahead of its data; a shard whose names fill it is closed."""

ALIGNMENT = 64
"""Where tensors start in the file, and so in mapped memory. The format has no gaps; padding is tensors of its own."""

PADDING = "_padding_"
"""What names of padding start with."""

_CHUNK_NBYTES = 64 * 1024 * 1024
_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


class ShardWriter:
    """Write tensors one by one into one safetensors file.

    The format puts names and offsets first; they are known last, so room is left for them and padded with blanks,
    which the format allows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: dict[str, Any] = {}
        self._header_nbytes = 0
        self._data_nbytes = 0
        self._file: BinaryIO = path.open("wb")
        self._file.seek(8 + HEADER_NBYTES)

    @property
    def data_nbytes(self) -> int:
        """Return the bytes of tensors written so far."""
        return self._data_nbytes

    def fits(self, name: str, max_data_nbytes: int, nbytes: int) -> bool:
        """Return whether one more tensor fits; the first one always does, however large it is."""
        entry = 2 * len(json.dumps(name)) + 512  # its entry, and that of padding before it
        return not self._header or (
            self._data_nbytes + nbytes <= max_data_nbytes and self._header_nbytes + entry < HEADER_NBYTES
        )

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Append a contiguous tensor on the host."""
        if gap := -self._data_nbytes % ALIGNMENT:
            self._enter(f"{PADDING}{len(self._header)}", "U8", [gap], gap)
            self._file.write(bytes(gap))
        self._enter(name, _CODES[NAMES[tensor.dtype]], list(tensor.shape), tensor.nbytes)
        for chunk in _bytes_of(tensor):
            self._file.write(chunk)

    def _enter(self, name: str, code: str, shape: list[int], nbytes: int) -> None:
        end = self._data_nbytes + nbytes
        entry = {"dtype": code, "shape": shape, "data_offsets": [self._data_nbytes, end]}
        self._header_nbytes += len(json.dumps({name: entry})) + 2
        if self._header_nbytes > HEADER_NBYTES:
            raise ValueError(f"constant {name[:80]!r}: its name is too long for a shard")
        self._header[name] = entry
        self._data_nbytes = end

    def close(self) -> None:
        """Write the header and close the file."""
        header = json.dumps(self._header).encode().ljust(HEADER_NBYTES)
        self._file.seek(0)
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()


class ShardReader:
    """Read the tensors of one safetensors file, whose bytes are mapped and not copied.

    Raises ValueError where the file is not a whole safetensors file, or lacks a tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any
        try:
            self._file = safe_open(path, framework="pt", device="cpu")
        except SafetensorError as error:
            raise ValueError(f"not a whole safetensors file ({error})") from error
        self._names = frozenset(self._file.keys())

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the tensors."""
        return self._names

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype, as safetensors writes it, and sizes of a tensor."""
        part = self._file.get_slice(name)
        return str(part.get_dtype()), tuple(part.get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor over the bytes of the file; it must not be written to."""
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)


def code(dtype: str) -> str:
    """Return safetensors' name of a dtype."""
    return _CODES[dtype]


def _bytes_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    flat = tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    for start in range(0, flat.numel(), _CHUNK_NBYTES):
        yield memoryview(flat[start : start + _CHUNK_NBYTES].numpy())

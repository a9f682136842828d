"""Lazy reading of a safetensors checkpoint: headers at opening, the bytes of one tensor or one slice on demand.

Format: 8 bytes little-endian header length, a JSON header of {name: {dtype, shape, data_offsets}}, the bytes.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qwen35_moe.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
_ITEM_NBYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
_MAX_HEADER_NBYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies: its shard, the offset of its first byte in the file, and what its header says."""

    shard: Path
    offset_bytes: int
    dtype: str
    sizes: tuple[int, ...]


class Checkpoint:
    """The tensors of a checkpoint folder by name; nothing but headers is read before `read`.

    Raises CheckpointError at opening where the folder has no safetensors file or index, a shard is missing, truncated
    or no safetensors file, or the index names a tensor that its shard lacks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: Mapping[str, TensorEntry] = _read_entries(folder)

    def read(self, name: str, *, index: int | None = None) -> torch.Tensor:
        """Return the tensor, or entry `index` of its first dimension. Raises CheckpointError where bytes lack."""
        entry = self.entries[name]
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.shard.name}: tensor {name}: expected dtype {', '.join(_DTYPES)}, got {entry.dtype}"
            )
        sizes, dtype = entry.sizes, _DTYPES[entry.dtype]
        offset = entry.offset_bytes
        if index is not None:
            sizes = sizes[1:]
            offset += index * math.prod(sizes) * dtype.itemsize
        data = bytearray(math.prod(sizes) * dtype.itemsize)
        with entry.shard.open("rb", buffering=0) as file:
            file.seek(offset)
            read = _read_fully(file, memoryview(data))
        if read != len(data):
            raise CheckpointError(f"{entry.shard.name}: tensor {name}: expected {len(data)} bytes, got {read}")
        return torch.frombuffer(data, dtype=dtype).view(sizes) if data else torch.empty(sizes, dtype=dtype)


def _read_fully(file: Any, target: memoryview) -> int:
    done = 0
    # One call reads at most 2 GiB on Linux.
    while done < len(target) and (count := file.readinto(target[done:])):
        done += count
    return done


def _read_entries(folder: Path) -> dict[str, TensorEntry]:
    index, single = folder / INDEX, folder / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}, found neither")
        return _read_header(single)
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(f"{folder}: missing shard {', '.join(missing)} of {len(shards)}; incomplete download?")
    found = {shard: _read_header(folder / shard) for shard in shards}
    if absent := [name for name, shard in shard_of.items() if name not in found[shard]]:
        raise CheckpointError(
            f"{shard_of[absent[0]]}: lacks {len(absent)} tensors that {INDEX} places there, the first is {absent[0]}"
        )
    # A tensor that the index leaves out is reported by the table of names, as any other unknown tensor.
    return {name: entry for entries in found.values() for name, entry in entries.items()}


def _read_index(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(shard) for name, shard in document["weight_map"].items()}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: expected a JSON object with a weight_map: {error!r}") from error


def _read_header(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(size - 8, _MAX_HEADER_NBYTES):
            raise CheckpointError(f"{path.name}: truncated or not a safetensors file: {size} bytes")
        text = file.read(length)
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        entries = {name: _entry(path, 8 + length, item) for name, item in header.items()}
        end = max((item["data_offsets"][1] for item in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path.name}: not a safetensors file: {error!r}") from error
    if 8 + length + end != size:
        raise CheckpointError(f"{path.name}: truncated: expected {8 + length + end} bytes, got {size}")
    return entries


def _entry(path: Path, base: int, item: Mapping[str, Any]) -> TensorEntry:
    begin, end = item["data_offsets"]
    sizes = tuple(int(size) for size in item["shape"])
    nbytes = math.prod(sizes) * _ITEM_NBYTES.get(item["dtype"], 1)
    if end - begin != nbytes or begin < 0 or any(size < 0 for size in sizes):
        raise ValueError(f"{item['dtype']} {sizes} takes {nbytes} bytes, the header gives {end - begin}")
    return TensorEntry(shard=path, offset_bytes=base + begin, dtype=item["dtype"], sizes=sizes)

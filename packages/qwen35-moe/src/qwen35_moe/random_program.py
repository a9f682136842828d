"""A program folder with random weights of sane scale, made without a checkpoint: for timing at full size."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from device_core import ProgramWriter
from device_core.schema.types import Program

from qwen35_moe.config import parse_config
from qwen35_moe.exporter import ExportOptions, OnProgress, describe, lower_model
from qwen35_moe.model import ModelFormat
from qwen35_moe.model.folding import FOLDED, with_folded_routers
from qwen35_moe.model.rope import rope_table
from qwen35_moe.testing import random_values

_POOL_NBYTES = 1 << 26
# Standard deviation of integers drawn evenly from [-8, 7].
_NIBBLE_DEVIATION = math.sqrt((16**2 - 1) / 12)


def write_random_program(
    folder: Path,
    document: Mapping[str, Any],
    options: ExportOptions,
    *,
    dtype: torch.dtype = torch.bfloat16,
    on_progress: OnProgress | None = None,
) -> Program:
    """Write the program of `document`, a `config.json`, as `export_checkpoint` would; one constant in memory at a time.

    Large weights repeat one pool of random numbers at shifting places, which costs a copy and not a draw a number.
    """
    report = on_progress or (lambda stage, done, total: None)
    config, form = parse_config(document), ModelFormat(dtype=dtype, int4=options.int4)
    lowered = lower_model(config, form, options, config.vocab_size, report)
    pool = _Pool()

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, like in lowered.constants.items():
            if name.endswith("rope"):
                yield name, rope_table(options.max_context, config.rotary_dim, config.rope_theta, dtype)
            elif not name.endswith(FOLDED):
                yield name, _constant(name, like, options.group_size, pool)

    total, done = sum(tensor.nbytes for tensor in lowered.constants.values()), 0
    with ProgramWriter(folder) as writer:
        for name, value in with_folded_routers(weights(), form):
            writer.add_constant(name, value)
            done += value.nbytes
            report("weights", done, total)
        return writer.finish(describe(lowered.program, config, form, options, {}))


class _Pool:
    """Random bytes and standard normal numbers, read round and round from a moving place."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._bytes = torch.randint(0, 256, (_POOL_NBYTES,), dtype=torch.uint8, generator=self._generator)
        self._normal = torch.randn(_POOL_NBYTES // 4, generator=self._generator).to(torch.bfloat16)
        self._place = 0

    def bytes(self, count: int) -> torch.Tensor:
        return self._take(self._bytes, count)

    def normal(self, count: int) -> torch.Tensor:
        return self._take(self._normal, count)

    def drawn(self, name: str, sizes: tuple[int, ...]) -> torch.Tensor:
        return torch.cat(list(random_values(name, sizes, self._generator)))

    def _take(self, source: torch.Tensor, count: int) -> torch.Tensor:
        # A prime step, so that no two weights are equal.
        self._place = (self._place + 1_000_003) % len(source)
        rolled = source.roll(self._place) if count >= len(source) else source
        start = 0 if count >= len(source) else self._place % (len(source) - count)
        return rolled[start:].repeat(-(-count // (len(source) - start)))[:count]


def _constant(name: str, like: torch.Tensor, group_size: int, pool: _Pool) -> torch.Tensor:
    sizes = tuple(like.shape)
    if like.dtype == torch.uint8:
        return pool.bytes(like.numel()).view(sizes)
    if name.endswith("scales"):
        scale = 1 / (_NIBBLE_DEVIATION * math.sqrt(sizes[-1] * group_size))
        return (scale * (1 + 0.1 * pool.normal(like.numel()).float().clamp(-3, 3))).to(like.dtype).view(sizes)
    if len(sizes) == 1:
        source = name.replace("mixer.a_log", "linear_attn.A_log").replace(
            "mixer.norm_weight", "linear_attn.norm.weight"
        )
        return pool.drawn(source, sizes).to(like.dtype)
    scale = 1.0 if name.endswith("embedding") else sizes[-1] ** -0.5
    return pool.normal(like.numel()).to(like.dtype).mul_(scale).view(sizes)

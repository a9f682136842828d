"""Weights of the model out of a checkpoint, one at a time: read, combined, cast, quantized where the format says so."""

from collections.abc import Iterator
from pathlib import Path

import torch

from qwen35_moe.checkpoint.reader import Checkpoint
from qwen35_moe.checkpoint.table import Block, Target, check_names, targets, text_names
from qwen35_moe.config import ModelConfig, read_config
from qwen35_moe.model.decoder import Decoder
from qwen35_moe.model.folding import with_folded_routers
from qwen35_moe.model.rope import rope_table
from qwen35_moe.model.weights import Int4, ModelFormat
from qwen35_moe.quantize.int4 import QuantizedMatrix, check_group_size

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def checkpoint_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """Return the dtype that the model runs in: that of the checkpoint's embedding."""
    return _DTYPES[checkpoint.entries[text_names(checkpoint)["embed_tokens.weight"]].dtype]


def load_decoder(folder: Path, *, int4: Int4 | None = None, slots: int = 1, context: int = 512) -> Decoder:
    """Return the eager model with the weights of a checkpoint folder, in the checkpoint's dtype.

    Raises ConfigError and CheckpointError as `read_config`, `Checkpoint` and `check_names` do.
    """
    config, checkpoint = read_config(folder), Checkpoint(folder)
    check_names(checkpoint, config)
    form = ModelFormat(dtype=checkpoint_dtype(checkpoint), int4=int4)
    decoder = Decoder(config, form, slots=slots, context=context)
    for name, tensor in stream_weights(checkpoint, config, form, context=context):
        decoder.get_parameter(name).copy_(tensor)
    return decoder


def stream_weights(
    checkpoint: Checkpoint, config: ModelConfig, form: ModelFormat, *, context: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name of the decoder's parameter, its value), one weight in memory at a time.

    Raises ExportError, before the first is read, where `form`'s group size does not divide a matrix.
    """
    return with_folded_routers(_read_weights(checkpoint, config, form, context), form)


def _read_weights(
    checkpoint: Checkpoint, config: ModelConfig, form: ModelFormat, context: int
) -> Iterator[tuple[str, torch.Tensor]]:
    names = text_names(checkpoint)
    if form.int4 is not None:
        for name, columns in quantized_columns(checkpoint, config):
            check_group_size(name, columns, form.int4.group_size)
    yield "rope", rope_table(context, config.rotary_dim, config.rope_theta, form.dtype)
    for target in targets(config, names):
        if form.int4 is not None and target.scales is not None:
            yield from _quantized(target, target.scales, checkpoint, names, form)
        else:
            yield target.name, _dense(target, checkpoint, names, form)


def quantized_columns(checkpoint: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield (name in the checkpoint, without its prefix; columns) of every matrix that int4 quantizes."""
    for target in targets(config, text_names(checkpoint)):
        if target.scales is not None:
            yield target.blocks[0].sources[0].name, target.sizes[-1]


def _read_block(block: Block, checkpoint: Checkpoint, names: dict[str, str]) -> torch.Tensor:
    return block.combine([checkpoint.read(names[source.name], index=source.index) for source in block.sources])


def _dense(target: Target, checkpoint: Checkpoint, names: dict[str, str], form: ModelFormat) -> torch.Tensor:
    result = torch.empty(target.sizes, dtype=torch.float32 if target.float32 else form.dtype)
    row = 0
    for block in target.blocks:
        part = _read_block(block, checkpoint, names)
        result[row : row + len(part)] = part
        row += len(part)
    return result


def _quantized(
    target: Target, scales: str, checkpoint: Checkpoint, names: dict[str, str], form: ModelFormat
) -> Iterator[tuple[str, torch.Tensor]]:
    assert form.int4 is not None
    matrix = QuantizedMatrix(target.sizes, group_size=form.int4.group_size, scale_dtype=form.dtype)
    row = 0
    for block in target.blocks:
        # Rounded to the model's dtype first: quantization of a checkpoint is the same in every storage dtype.
        part = _read_block(block, checkpoint, names).to(form.dtype)
        matrix.write(row, part, where=block.sources[0].name)
        row += len(part)
    yield target.name, matrix.packed
    yield scales, matrix.scales

"""Tracing of the model's three methods with fake weights: no memory for weights is needed, whatever the size."""

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from qwen35_moe.config import ModelConfig
from qwen35_moe.model import Decode, Decoder, ModelFormat, Prefill, Sample, TokenHistory
from qwen35_moe.sampling import COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShape:
    """The sizes that tracing fixes: sequences that have state, their longest length, the longest piece of a prompt."""

    slots: int
    context: int
    chunk: int


def trace_methods(
    config: ModelConfig, form: ModelFormat, shape: TraceShape, *, sampled_vocab_size: int
) -> dict[str, ExportedProgram]:
    """Return `prefill`, `decode` and `sample`, which share weights and state by name.

    `prefill` takes 1 to `shape.chunk` tokens, the others exactly `shape.slots` rows. Weights, state and inputs are
    fake tensors on the CPU: placing them elsewhere is the business of the passes.
    """
    with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
        decoder = Decoder(config, form, slots=shape.slots, context=shape.context)
        history = TokenHistory(shape.slots, config.vocab_size)

        def rows(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype)

        B = shape.slots
        prefill_inputs = (rows(shape.chunk), rows(1), rows(1))
        decode_inputs = (rows(B), rows(B), rows(B))
        columns = tuple(rows(B, dtype) for _, dtype in COLUMNS)
        sample_inputs = (torch.zeros(B, config.vocab_size), *columns, rows(B), rows(B))
    length = {0: Dim("tokens", min=1, max=shape.chunk)}
    return {
        "prefill": export(Prefill(decoder, history), prefill_inputs, dynamic_shapes=(length, None, None), strict=False),
        "decode": export(Decode(decoder), decode_inputs, strict=False),
        "sample": export(Sample(history, sampled_vocab_size), sample_inputs, strict=False),
    }

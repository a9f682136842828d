"""Export of a checkpoint: trace, lower, then stream the weights into the program folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Literal

import cuda_kernels
import msgspec
from device_core import Device
from device_core.schema.codec import ProgramWriter
from device_core.schema.types import Program
from export_passes import BackendConfig, DevicePartitioner, MethodConfig, lower
from export_passes.pipeline import Lowered

from qwen35_moe.assets import read_assets, sampled_vocab_size, stop_ids
from qwen35_moe.checkpoint import Checkpoint, check_names, stream_weights
from qwen35_moe.checkpoint.load import checkpoint_dtype
from qwen35_moe.config import ModelConfig, read_config
from qwen35_moe.errors import ExportError
from qwen35_moe.files import naming
from qwen35_moe.model import Int4, ModelFormat
from qwen35_moe.model.weights import Activations
from qwen35_moe.tracing import TraceShape, trace_methods

OnProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and how much there is."""

_MAX_CHUNK = 4096
# Rows of a batch lie along the second or third axis of a launch, which CUDA bounds.
_MAX_SLOTS = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How a checkpoint becomes a program.

    quant: matrices in int4, or as they are. group_size: weights that share an int4 scale.
    max_context: the longest sequence, prompt and output together. slots: sequences that have state at once.
    chunk: the longest piece of a prompt that one call takes; None: `max_context`, at most 4096.
    device: where every operator runs, `cpu` or `cuda:0`.
    activations: int8 rows meet int4 matrices, or rows of the model's dtype; None: int8 on a GPU, float on the CPU.

    Raises ExportError where a value is outside its range.
    """

    quant: Literal["int4", "none"] = "int4"
    group_size: int = 128
    max_context: int = 4096
    slots: int = 1
    chunk: int | None = None
    device: str = "cpu"
    activations: Activations | None = None

    def __post_init__(self) -> None:
        _require(self.quant in ("int4", "none"), "quant", "'int4' or 'none'", self.quant)
        _require(self.activations in (None, "float", "int8"), "activations", "'float' or 'int8'", self.activations)
        _require(not (self.quant == "none" and self.activations == "int8"), "activations",
                 "'float' where weights are not quantized", self.activations)  # fmt: skip
        _require(self.max_context >= 2, "max_context", "at least 2", self.max_context)
        _require(1 <= self.slots <= _MAX_SLOTS, "slots", f"1 to {_MAX_SLOTS}", self.slots)
        _require(self.chunk is None or 2 <= self.chunk <= self.max_context, "chunk",
                 f"2 to max_context {self.max_context}", self.chunk)  # fmt: skip

    @property
    def int4(self) -> Int4 | None:
        """Return the form of the matrices."""
        if self.quant == "none":
            return None
        default: Activations = "float" if Device.parse(self.device).is_host else "int8"
        return Int4(group_size=self.group_size, activations=self.activations or default)

    @property
    def shape(self) -> TraceShape:
        """Return the sizes that tracing fixes."""
        chunk = self.chunk or min(self.max_context, _MAX_CHUNK)
        return TraceShape(slots=self.slots, context=self.max_context, chunk=chunk)


def export_checkpoint(
    checkpoint: Path, output: Path, options: ExportOptions, on_progress: OnProgress | None = None
) -> Program:
    """Write the program folder `output` of a checkpoint folder; return its program.

    The folder is complete or not there; one weight is in memory at a time. Stages of progress: `trace`, `lower`, and
    `weights` in bytes of the program's constants.

    Raises ConfigError, CheckpointError or ExportError where checkpoint and options do not fit, FileExistsError where
    `output` exists, OSError with its name where it cannot be written.
    """
    report = on_progress or (lambda stage, done, total: None)
    config, tensors = read_config(checkpoint), Checkpoint(checkpoint)
    check_names(tensors, config)
    form = ModelFormat(dtype=checkpoint_dtype(tensors), int4=options.int4)
    _check_context(config, options)
    assets = read_assets(checkpoint)
    weights = stream_weights(tensors, config, form, context=options.max_context)
    with naming(output), ProgramWriter(output) as writer:
        first = next(weights)  # checks the group size before the minute that tracing may take
        lowered = lower_model(config, form, options, sampled_vocab_size(config, assets), report)
        program = describe(lowered.program, config, form, options, assets)
        total = sum(tensor.nbytes for tensor in lowered.constants.values())
        done = 0
        for name, tensor in chain((first,), weights):
            if f"decoder.{name}" not in lowered.constants:
                continue  # the rope table, where no layer is full attention
            writer.add_constant(f"decoder.{name}", tensor)
            done += tensor.nbytes
            report("weights", done, total)
        for name, content in assets.items():
            writer.add_asset(name, content)
        return writer.finish(program)


def lower_model(
    config: ModelConfig, form: ModelFormat, options: ExportOptions, sampled: int, report: OnProgress
) -> Lowered:
    """Trace the methods and lower them onto the device of `options`; constants are fake tensors."""
    cuda_kernels.register()
    report("trace", 0, 1)
    methods = trace_methods(config, form, options.shape, sampled_vocab_size=sampled)
    report("trace", 1, 1)
    report("lower", 0, 1)
    device = Device.parse(options.device)
    on_device = not device.is_host
    lowered = lower(
        methods,
        BackendConfig(
            partitioner=DevicePartitioner(device) if on_device else None,
            default=MethodConfig(skip_h2d_for_method_inputs=on_device, skip_d2h_for_method_outputs=on_device),
        ),
    )
    report("lower", 1, 1)
    return lowered


def describe(
    program: Program, config: ModelConfig, form: ModelFormat, options: ExportOptions, assets: Mapping[str, bytes]
) -> Program:
    """Return the program with its producer, and with metadata: what the engine must know beside the methods."""
    int4 = form.int4
    metadata: dict[str, str | int] = {
        "model": "qwen3_5_moe",
        "context": options.shape.context,
        "chunk": options.shape.chunk,
        "slots": options.shape.slots,
        "vocab_size": config.vocab_size,
        "active_experts": config.num_experts_per_tok + config.shared_experts,
        "sampled_vocab_size": sampled_vocab_size(config, assets),
        "eos_token_ids": " ".join(map(str, stop_ids(config, assets))),
        "device": str(Device.parse(options.device)),
        "dtype": str(form.dtype).removeprefix("torch."),
        "quant": "none" if int4 is None else f"int4 group {int4.group_size}, {int4.activations} activations",
    }
    return msgspec.structs.replace(program, producer=f"qwen35-moe {version('qwen35-moe')}", metadata=metadata)


def _check_context(config: ModelConfig, options: ExportOptions) -> None:
    _require(options.max_context <= config.max_position_embeddings, "max_context",
             f"at most max_position_embeddings {config.max_position_embeddings}", options.max_context)  # fmt: skip


def _require(condition: bool, name: str, expected: str, given: object) -> None:
    if not condition:
        raise ExportError(f"{name}: expected {expected}, got {given!r}")

"""The exporter: the program equals the eager model, assets and metadata go with it, a failure leaves nothing."""

import json
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_core import Module, read_program
from device_core.schema import types as t
from qwen35_moe import exporter
from qwen35_moe.checkpoint import load_decoder, stream_weights
from qwen35_moe.errors import ExportError
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.model import Int4

MakeCheckpoint = Callable[..., Path]
CONTEXT, CHUNK, SLOTS = 40, 16, 2


@pytest.mark.parametrize(
    ("options", "int4"),
    [
        ({"quant": "none"}, None),
        ({"group_size": 32}, Int4(group_size=32)),
        ({"group_size": 32, "activations": "int8"}, Int4(group_size=32, activations="int8")),
    ],
    ids=["dense", "int4", "int4-int8"],
)
def test_program_equals_the_eager_model_bitwise(
    small_checkpoint: Path, tmp_path: Path, options: dict[str, Any], int4: Int4 | None
) -> None:
    export_checkpoint(
        small_checkpoint,
        tmp_path / "program",
        ExportOptions(max_context=CONTEXT, chunk=CHUNK, slots=SLOTS, **options),
    )
    decoder = load_decoder(small_checkpoint, int4=int4, slots=SLOTS, context=CONTEXT)
    tokens = torch.randint(0, 301, (20,))
    with Module.load(tmp_path / "program") as module, torch.no_grad():
        for start, part in ((0, tokens[:CHUNK]), (CHUNK, tokens[CHUNK:])):
            where = (torch.tensor([start]), torch.tensor([1]))
            (given,) = module.execute("prefill", (part, *where))
            assert torch.equal(given, decoder.logits(decoder.prefill(part, *where)[-1:]))
        for position in (20, 21):
            rows = (torch.tensor([3, 9]), torch.tensor([position, 0]), torch.tensor([1, -1]))
            (given,) = module.execute("decode", rows)
            assert torch.equal(given[0], decoder.logits(decoder.decode(*rows))[0])
        for name, state in module.default_session.state.items():
            if name.startswith("decoder."):
                assert torch.equal(state, decoder.get_buffer(name.removeprefix("decoder."))), name


def test_constants_are_the_weights_once(small_checkpoint: Path, small_program: Path) -> None:
    program = read_program(small_program)
    decoder = load_decoder(small_checkpoint, int4=Int4(group_size=32))
    assert set(program.constants) == {f"decoder.{name}" for name, _ in decoder.named_parameters()}
    assert {method.name for method in program.methods} == {"prefill", "decode", "sample"}
    assert program.state.keys() == {
        f"decoder.{name}" for name, _ in decoder.named_buffers()
    } | {"history.counts"}  # fmt: skip


def test_no_instruction_copies_a_cache(small_program: Path) -> None:
    methods = read_program(small_program).methods
    operators = {operator for method in methods for operator in method.operators}
    # The one copy is that of the norm's gate, a part of the rows of a projection.
    assert {name for name in operators if not name.startswith("cuda_kernels::")} == {
        "aten::index_select.out", "aten::copy_"
    }  # fmt: skip
    for method in methods:
        for call in method.instructions:
            if isinstance(call, t.KernelCall) and method.operators[call.operator] == "aten::copy_":
                copied = (method.values[index] for index in call.args)
                assert not any(isinstance(x, t.TensorValue) and isinstance(x.storage, t.State) for x in copied)


def test_progress_reaches_its_total(small_checkpoint: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    export_checkpoint(
        small_checkpoint,
        tmp_path / "program",
        ExportOptions(quant="none", max_context=16),
        lambda *call: calls.append(call),
    )
    assert [stage for stage, _, _ in calls if stage != "weights"] == ["trace", "trace", "lower", "lower"]
    done = [(done, total) for stage, done, total in calls if stage == "weights"]
    constants = read_program(tmp_path / "program").constants.values()
    nbytes = sum(math.prod(spec.sizes) * getattr(torch, spec.dtype).itemsize for spec in constants)
    assert done[-1] == (nbytes, nbytes)
    assert done == sorted(done)


def test_metadata_and_assets(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    tokenizer = {"model": {"vocab": {"a": 0, "b": 270}}, "added_tokens": [{"id": 280, "content": "<end>"}]}
    files = {
        "tokenizer.json": json.dumps(tokenizer),
        "generation_config.json": json.dumps({"eos_token_id": [280, 0]}),
        "chat_template.jinja": "{{ messages }}",
    }
    for name, text in files.items():
        (checkpoint / name).write_text(text)
    program = export_checkpoint(checkpoint, tmp_path / "program", ExportOptions(group_size=32, max_context=64, slots=3))
    assert program.metadata == {
        "model": "qwen3_5_moe",
        "context": 64,
        "chunk": 64,
        "slots": 3,
        "vocab_size": 301,
        "active_experts": 5,
        "sampled_vocab_size": 281,
        "eos_token_ids": "280 0",
        "device": "cpu",
        "dtype": "float32",
        "quant": "int4 group 32, float activations",
    }
    for name, text in files.items():
        assert (tmp_path / "program" / name).read_text() == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quant": "int8"}, "quant: expected 'int4' or 'none', got 'int8'"),
        ({"quant": "none", "activations": "int8"}, "activations: expected 'float' where weights are not quantized"),
        ({"activations": "int4"}, "activations: expected"),
        ({"max_context": 1}, "max_context: expected at least 2, got 1"),
        ({"slots": 0}, "slots: expected 1 to 65535, got 0"),
        ({"slots": 65536}, "slots: expected 1 to 65535, got 65536"),
        ({"chunk": 1}, "chunk: expected 2 to max_context 4096, got 1"),
        ({"chunk": 8192}, "chunk: expected 2 to max_context 4096, got 8192"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_wrong_option_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        ExportOptions(**values)


@pytest.mark.parametrize(
    ("options", "files", "message"),
    [
        ({"group_size": 128}, {}, "expected a multiple of group_size 128 columns, got 64"),
        ({"quant": "none", "max_context": 8192}, {}, "at most max_position_embeddings 4096, got 8192"),
        ({"quant": "none"}, {"tokenizer.json": "{"}, r"tokenizer.json: not a JSON document"),
        ({"quant": "none"}, {"generation_config.json": "[]"}, r"generation_config.json: expected a JSON object"),
    ],
    ids=["group-size", "context", "tokenizer", "generation-config"],
)
def test_failed_export_leaves_nothing(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, options: dict[str, Any], files: dict[str, str], message: str
) -> None:
    checkpoint = make_checkpoint()
    for name, text in files.items():
        (checkpoint / name).write_text(text)
    with pytest.raises(ExportError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out" / "program", ExportOptions(**options))
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_export_interrupted_while_weights_stream_leaves_nothing(small_checkpoint: Path, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "weights" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_checkpoint(
            small_checkpoint, tmp_path / "program", ExportOptions(quant="none", max_context=16), interrupt
        )
    assert not list(tmp_path.iterdir())


def test_weights_are_in_memory_one_at_a_time(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def watched(*args: Any, **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in stream_weights(*args, **options):
            # This one, the one before it, and the packed half of a matrix whose scales are yielded.
            assert sum(ref() is not None for ref in seen) <= 2, name
            seen.append(weakref.ref(tensor))
            yield name, tensor

    monkeypatch.setattr(exporter, "stream_weights", watched)
    export_checkpoint(small_checkpoint, tmp_path / "program", ExportOptions(group_size=32, max_context=16))
    assert len(seen) == len(read_program(tmp_path / "program").constants)


def test_existing_output_is_refused_before_tracing(
    small_checkpoint: Path, small_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "trace_methods", None)
    with pytest.raises(FileExistsError):
        export_checkpoint(small_checkpoint, small_program, ExportOptions(group_size=32))


def test_program_for_a_gpu_places_every_operator_there(small_checkpoint: Path, tmp_path: Path) -> None:
    program = export_checkpoint(
        small_checkpoint, tmp_path / "program", ExportOptions(group_size=32, max_context=32, device="cuda:0")
    )
    assert program.metadata["device"] == "cuda:0"
    for method in program.methods:
        devices = {getattr(value, "device", "cuda:0") for value in method.values}
        assert devices == {"cuda:0"}, method.name
        assert {buffer.device for buffer in method.buffers} == {"cuda:0"}
        assert not [name for name in method.operators if name.startswith("device_copy")]
    assert {state.device for state in program.state.values()} == {"cuda:0"}

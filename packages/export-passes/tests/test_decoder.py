"""A decoder of plain operators: two methods over one cache, and its plan at full depth."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device_core import Device
from device_core.testing import RecordingDevice
from export_passes import BackendConfig, DevicePartitioner, MethodConfig, lower
from export_passes.importer import import_program
from export_passes.memory_plan.naive import naive
from export_passes.memory_plan.planner import plan_memory
from export_passes.pipeline import passes_of, run_passes
from export_passes.testing import Decoder, assert_equal
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv

CONTEXT = 16
COMMITTED = Path(__file__).parents[1] / "benchmarks" / "plan_memory.json"


def methods_of(model: Decoder, context: int) -> dict[str, ExportedProgram]:
    many, one = torch.zeros(context - 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    length = {0: Dim("T", min=2, max=context)}
    return {
        "prefill": export(model, (many, many.clone()), dynamic_shapes=(length, length)),
        "decode": export(model, (one, one.clone())),
    }


PLACES = [pytest.param(None, id="host"), pytest.param(Device.parse("cuda:1"), id="fake-device")]


@pytest.mark.parametrize("device", PLACES)
def test_prefill_and_decode_share_a_cache(device: Device | None, load: Callable[..., Any]) -> None:
    model, eager = Decoder(layers=2, context=CONTEXT), Decoder(layers=2, context=CONTEXT)
    eager.load_state_dict(model.state_dict())
    place = None if device is None else DevicePartitioner(device)
    lowered = lower(methods_of(model, CONTEXT), BackendConfig(partitioner=place))
    assert len(lowered.program.state) == 4
    tokens = torch.arange(CONTEXT) * 5 % 97
    with RecordingDevice(2):
        module = load(lowered)
        for length in (2, 7, CONTEXT):
            positions = torch.arange(length)
            with torch.no_grad():
                assert_equal(module.execute("prefill", (tokens[:length], positions)), eager(tokens[:length], positions))
                last = torch.tensor([length - 1])
                assert_equal(module.execute("decode", (tokens[last], last)), eager(tokens[last], last))
        module.close()


@pytest.mark.slow
def test_plan_at_full_depth_is_close_to_the_floor_and_as_committed(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
        model = Decoder(layers=40, width=2048, heads=16, context=4096, vocabulary=32768)
        exported = methods_of(model, 4096)
    keep = MethodConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True)
    config = BackendConfig(partitioner=DevicePartitioner(Device.parse("cuda:0")), default=keep)
    program = import_program(exported, config)
    run_passes(program, passes_of(config))
    planned = []
    for method in program.methods:
        plan, alone = plan_memory(method), plan_memory(method, planner=naive)
        for buffer, peak, unshared in zip(plan.buffers, plan.peaks, alone.buffers, strict=True):
            share = buffer.nbytes / peak
            with capsys.disabled():
                print(f"\n{method.name} {buffer.kind}: {buffer.nbytes:,} bytes, {share:.4f} of the floor, ", end="")
                print(f"{unshared.nbytes / buffer.nbytes:.1f} times less than unshared", end="")
            assert share <= 1.05
            planned.append((method.name, buffer.kind, buffer.nbytes, peak, unshared.nbytes))
    keys = ("method", "kind", "planned_nbytes", "peak_nbytes", "naive_nbytes")
    assert planned == [tuple(row[key] for key in keys) for row in json.loads(COMMITTED.read_text())["buffers"]]

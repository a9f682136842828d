"""Random graphs on a host and two fake devices: what is compiled equals eager torch, and every device is respected."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from device_core import Device, Module, clone_to
from device_core.schema import types as t
from device_core.testing import RecordingDevice
from export_passes import Lowered, lower
from export_passes.testing import RandomProgram, assert_equal, random_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 2000


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "host", tensor)


def check_devices(lowered: Lowered) -> None:
    """Every tensor is on the device of its buffer, views on that of their storage, and no copy goes unread."""
    for method in lowered.program.methods:
        copies: set[int] = set()
        read: set[int] = set(method.outputs)
        for value in method.values:
            if isinstance(value, t.TensorValue):
                match value.storage:
                    case t.Planned(buffer=buffer):
                        assert value.device == method.buffers[buffer].device
                    case t.State(name=name):
                        assert value.device == lowered.program.state[name].device
                    case t.Bound(value=base):
                        assert value.device == method.values[base].device
            elif isinstance(value, t.ListValue):
                read.update(value.items)
        storages = {i: v.storage for i, v in enumerate(method.values) if isinstance(v, t.TensorValue)}
        for call in method.instructions:
            read.update(i for i in call.args if not method.operators[call.operator].endswith("zero_"))
            if method.operators[call.operator].startswith("device_copy::"):
                copies.update(call.outputs)
        for copy in copies:
            # Read under its own name or through a view of it.
            assert copy in read or any(storages.get(i) and type(storages[i]) is type(storages[copy]) for i in read)


def run(program: RandomProgram, folder: Path) -> Lowered:
    lowered = lower(program.methods, program.config)
    check_devices(lowered)
    lowered.save(folder, overwrite=True)
    with RecordingDevice(2) as devices, Module.load(folder) as module:
        eager, session = program.eager(), module.new_session()
        for name in [*program.methods, *program.methods]:
            execute(program, name, session, eager, module)
            for state, tensor in session.state.items():
                assert_equal(on_host(tensor), eager.buffers[state])
        names = {name for name, _ in module.constants}
        needed = sum(module.constants[key].nbytes for key in module.constants if key[1] != "cpu")
        assert names <= set(eager.buffers)
        assert module.uploaded_nbytes == needed
        assert devices.live_nbytes() >= 0
    return lowered


def execute(program: RandomProgram, name: str, session: Any, eager: Any, module: Module) -> None:
    method = module.entry(name).method
    given_inputs, expected_inputs, kept = [], [], []
    for index, tensor in zip(method.inputs, program.inputs[name], strict=True):
        value = method.values[index]
        expected_inputs.append(tensor.clone())
        given_inputs.append(clone_to(tensor, Device.parse(value.device)))
        kept.append(isinstance(value.storage, t.Bound))
    supplied = [
        clone_to(torch.zeros(value.sizes, dtype=getattr(torch, value.dtype)), Device.parse(value.device))
        if isinstance(value.storage, t.Bound) and value.storage.value == index and index not in method.inputs
        else None
        for index, value in ((i, method.values[i]) for i in method.outputs)
    ]
    outputs = session.execute(name, given_inputs, outputs=supplied)
    assert_equal([on_host(o) for o in outputs], eager.execute(name, expected_inputs))
    for given_input, expected, bound in zip(given_inputs, expected_inputs, kept, strict=True):
        if bound:
            assert_equal(on_host(given_input), expected)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_random_graphs_equal_eager(rng: random.Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    run(random_program(rng), Path("/dev/shm") / "x")

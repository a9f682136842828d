"""Random programs: graphs of operators, views, in-place writes and state, built without tracing."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from device_core import HOST, Device, DeviceType
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import (
    InputKind,
)
from torch.fx import Node
from torch.fx.node import map_arg

from export_passes.config import BackendConfig, MethodConfig
from export_passes.importer import Exported
from export_passes.placement import Placement
from export_passes.testing.graph_builder import SHAPES, GraphBuilder, random_tensor
from export_passes.testing.random_steps import STEPS

DEVICES = (HOST, Device(DeviceType.CUDA, 0), Device(DeviceType.CUDA, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomProgram:
    """Exported methods over shared buffers, a configuration that places them at random, and inputs for each method."""

    methods: Mapping[str, Exported]
    config: BackendConfig
    inputs: Mapping[str, Sequence[torch.Tensor]]

    def eager(self) -> "Eager":
        """Return what runs the methods operator by operator, on buffers of its own."""
        return Eager(self)


class Eager:
    """The reference: interprets the exported graphs on real tensors."""

    def __init__(self, program: RandomProgram) -> None:
        self._methods = program.methods
        first = next(iter(program.methods.values()))
        self.buffers = {name: tensor.clone() for name, tensor in first.state_dict.items()}

    def execute(self, method: str, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run a method; inputs and buffers that it writes are written."""
        program = self._methods[method]
        values: dict[Node, Any] = {}
        given = iter(inputs)
        specs = iter(program.graph_signature.input_specs)
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = next(specs)
                values[node] = next(given) if spec.kind is InputKind.USER_INPUT else self.buffers[str(spec.target)]
            elif node.op == "call_function":
                values[node] = node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))
            else:
                return tuple(map_arg(node.args[0], values.get))
        raise AssertionError("a graph without output")


def random_program(
    rng: random.Random, *, devices: Sequence[Device] = DEVICES, max_operators: int = 12
) -> RandomProgram:
    """Build one or two methods of up to `max_operators` operators over the same buffers, each placed on a device."""
    buffers = {f"b{i}": random_tensor(rng, rng.choice(SHAPES)) for i in range(rng.randint(0, 3))}
    names = ["f", "g"][: rng.randint(1, 2)]
    fake_mode = FakeTensorMode()
    built = {name: GraphBuilder(rng, fake_mode, buffers).build(rng.randint(1, max_operators), STEPS) for name in names}
    places = {
        name: {node.name: rng.choice(devices) for node in program.graph.nodes} for name, (program, _) in built.items()
    }

    def place(method: str, node: Node) -> Placement:
        return Placement(places[method][node.name])

    return RandomProgram(
        methods={name: program for name, (program, _) in built.items()},
        config=BackendConfig(partitioner=place, methods={name: _random_config(rng) for name in names}),
        inputs={name: inputs for name, (_, inputs) in built.items()},
    )


def _random_config(rng: random.Random) -> MethodConfig:
    skip = rng.random() < 0.4
    return MethodConfig(
        skip_h2d_for_method_inputs=skip,
        skip_d2h_for_method_outputs=rng.random() < 0.4,
        plan_inputs=not skip and rng.random() < 0.4,
        plan_outputs=rng.random() < 0.7,
    )

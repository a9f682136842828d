"""Random programs: graphs of operators, views, in-place writes and state, built without tracing."""

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from device_core import HOST, Device, DeviceType
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from export_passes.config import BackendConfig, MethodConfig
from export_passes.importer import Exported
from export_passes.placement import Placement

aten = torch.ops.aten

DEVICES = (HOST, Device(DeviceType.CUDA, 0), Device(DeviceType.CUDA, 1))
SHAPES = ((3,), (2, 3), (3, 2), (3, 3), (2, 3, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltMethod:
    """What lowering reads of an exported program."""

    graph: Graph
    graph_signature: ExportGraphSignature
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    range_constraints: dict[Any, Any]


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


def random_program(rng: random.Random, *, max_operators: int = 12) -> RandomProgram:
    """Build one or two methods of up to `max_operators` operators over the same buffers."""
    buffers = {f"b{i}": _real(rng, rng.choice(SHAPES)) for i in range(rng.randint(0, 3))}
    names = ["f", "g"][: rng.randint(1, 2)]
    fake_mode = FakeTensorMode()
    built = {name: _Builder(rng, fake_mode, buffers).build(rng.randint(1, max_operators)) for name in names}
    places = {
        name: {node.name: rng.choice(DEVICES) for node in program.graph.nodes} for name, (program, _) in built.items()
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


def _real(rng: random.Random, shape: Sequence[int]) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.tensor([rng.randint(-8, 8) / 4 for _ in range(count)]).reshape(shape)


class _Builder:
    """Adds operators one by one, each on values that are there; real tensors say what comes out.

    Only placeholders carry fake tensors, as lowering asks for.
    """

    def __init__(self, rng: random.Random, fake_mode: FakeTensorMode, buffers: Mapping[str, torch.Tensor]) -> None:
        self._rng = rng
        self._fake_mode = fake_mode
        self._buffers = buffers
        self._graph = Graph()
        self._values: list[Node] = []
        self._tensors: dict[Node, torch.Tensor] = {}
        self._unwritable: set[Node] = set()
        self._specs: list[InputSpec] = []
        self._inputs: list[torch.Tensor] = []

    def build(self, operators: int) -> tuple[BuiltMethod, Sequence[torch.Tensor]]:
        """Return a method and inputs for it."""
        for name, tensor in self._buffers.items():
            self._placeholder(f"b_{name}", tensor, InputKind.BUFFER, name)
        for i in range(self._rng.randint(1, 3)):
            self._inputs.append(_real(self._rng, self._rng.choice(SHAPES)))
            self._placeholder(f"x{i}", self._inputs[-1], InputKind.USER_INPUT, None)
        for _ in range(operators):
            self._rng.choice(_STEPS)(self)
        outputs = [self.pick() for _ in range(self._rng.randint(1, 4))]
        self._graph.output(tuple(outputs))
        return self._exported(outputs), self._inputs

    def pick(self, rank: int | None = None) -> Node:
        """Return some value, recent ones more often."""
        fitting = [v for v in self._values if rank is None or v.meta["val"].dim() == rank]
        recent = fitting[-4:] if self._rng.random() < 0.6 else fitting
        return self._rng.choice(recent or self._values)

    def like(self, node: Node) -> Node:
        """Return some value of the sizes and dtype of `node`."""
        value = node.meta["val"]
        return self._rng.choice(
            [v for v in self._values if v.meta["val"].shape == value.shape and v.meta["val"].dtype == value.dtype]
        )

    def writable(self) -> Node | None:
        """Return some value that may be written: none with two elements in one place."""
        found = [v for v in self._values if v not in self._unwritable]
        if self.chance(0.4):
            state = [v for v in found if v.name.startswith("b_")]
            found = state or found
        return self._rng.choice(found) if found else None

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._rng.random() < probability

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`."""
        return self._rng.randint(low, high)

    def add(self, target: Callable[..., Any], *args: Any, writable: bool = True, **kwargs: Any) -> None:
        """Append an operator; its results become values."""
        node = self._graph.call_function(target, args, kwargs)
        result = target(*map_arg(args, self._tensors.get), **map_arg(kwargs, self._tensors.get))
        writable = writable and not any(a in self._unwritable for a in args if isinstance(a, Node))
        if isinstance(result, torch.Tensor):
            self._keep(node, result, writable)
            return
        for i, item in enumerate(result):
            self._keep(self._graph.call_function(operator.getitem, (node, i)), item, writable)

    def _keep(self, node: Node, tensor: torch.Tensor, writable: bool) -> None:
        node.meta.setdefault("val", tensor)
        self._tensors[node] = tensor
        self._values.append(node)
        if not writable:
            self._unwritable.add(node)

    def _placeholder(self, name: str, tensor: torch.Tensor, kind: InputKind, target: str | None) -> None:
        node = self._graph.placeholder(name)
        with self._fake_mode:
            node.meta["val"] = torch.empty(tensor.shape)
        persistent = True if kind is InputKind.BUFFER else None
        self._specs.append(InputSpec(kind, TensorArgument(name=name), target, persistent))
        self._keep(node, tensor.clone(), True)

    def _exported(self, outputs: Sequence[Node]) -> BuiltMethod:
        signature = ExportGraphSignature(
            input_specs=self._specs,
            output_specs=[OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in outputs],
        )
        return BuiltMethod(
            graph=self._graph,
            graph_signature=signature,
            state_dict=dict(self._buffers),
            constants={},
            range_constraints={},
        )


def _unary(b: _Builder) -> None:
    targets = (aten.neg.default, aten.relu.default, aten.sigmoid.default, aten.abs.default, aten.clone.default)
    b.add(b._rng.choice(targets), b.pick())


def _binary(b: _Builder) -> None:
    one = b.pick()
    b.add(b._rng.choice((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default)), one, b.like(one))


def _scalar(b: _Builder) -> None:
    b.add(b._rng.choice((aten.add.Tensor, aten.mul.Tensor)), b.pick(), b.integer(-2, 2))


def _broadcast(b: _Builder) -> None:
    one = b.pick()
    b.add(aten.sum.dim_IntList, one, [0], True)
    b.add(aten.sub.Tensor, one, b._values[-1])


def _product(b: _Builder) -> None:
    one = b.pick(2)
    if one.meta["val"].dim() == 2 and one.meta["val"].dtype == torch.float32:
        # Of signs: a product rounds differently for operands in other memory orders, and copies change the order.
        b.add(aten.sign.default, b.like(one))
        b.add(aten.t.default, b._values[-1])
        b.add(aten.sign.default, one)
        b.add(aten.mm.default, b._values[-1], b._values[-2])


def _concatenate(b: _Builder) -> None:
    one = b.pick()
    target = b._rng.choice((aten.cat.default, aten.stack.default))
    b.add(target, [one, b.like(one), one], b.integer(0, one.meta["val"].dim() - 1))


def _several(b: _Builder) -> None:
    one = b.pick()
    if one.meta["val"].dtype == torch.float32:
        dim = b.integer(0, one.meta["val"].dim() - 1)
        if b.chance(0.5):
            b.add(aten.aminmax.default, one, dim=dim, keepdim=True)
        else:
            b.add(aten.sort.stable, one, stable=True, dim=dim)


def _convert(b: _Builder) -> None:
    dtype = b._rng.choice((torch.bfloat16, torch.float32, torch.float64))
    one = b.pick()
    same = one.meta["val"].dtype == dtype
    b.add(aten.to.dtype, one, dtype, writable=not same or one not in b._unwritable)


def _new(b: _Builder) -> None:
    b.add(aten.full.default, list(b._rng.choice(SHAPES)), 0.5, dtype=torch.float32, device=torch.device("cpu"))


def _transpose(b: _Builder) -> None:
    one = b.pick()
    last = one.meta["val"].dim() - 1
    b.add(aten.transpose.int, one, 0, b.integer(0, last))


def _part(b: _Builder) -> None:
    one = b.pick()
    size = one.meta["val"].shape[0]
    if size > 1:
        start = b.integer(0, size - 1)
        b.add(aten.slice.Tensor, one, 0, start, b.integer(start + 1, size), b.integer(1, 2))


def _row(b: _Builder) -> None:
    one = b.pick()
    if one.meta["val"].dim() > 1:
        dim = b.integer(0, one.meta["val"].dim() - 1)
        b.add(aten.select.int, one, dim, b.integer(-one.meta["val"].shape[dim], one.meta["val"].shape[dim] - 1))


def _flatten(b: _Builder) -> None:
    one = b.pick()
    b.add(aten.reshape.default, one, [-1], writable=one not in b._unwritable)


def _widen(b: _Builder) -> None:
    one = b.pick()
    if one.meta["val"].dim() < 3:
        b.add(aten.unsqueeze.default, one, 0)
        b.add(aten.expand.default, b._values[-1], [2, *one.meta["val"].shape], writable=False)


def _split(b: _Builder) -> None:
    one = b.pick()
    b.add(aten.chunk.default, one, 2, b.integer(0, one.meta["val"].dim() - 1))


def _write(b: _Builder) -> None:
    one = b.writable()
    if one is None:
        return
    kind = b.integer(0, 3)
    if kind == 0:
        b.add(aten.add_.Tensor, one, b.integer(1, 3))
    elif kind in (1, 2):
        # A source of its own: overlap of the two would be undefined.
        b.add(aten.mul.Tensor, b.like(one), 2)
        b.add(aten.mul_.Tensor if kind == 1 else aten.copy_.default, one, b._values[-1])
    else:
        b.add(aten.zero_.default, one)


_STEPS: tuple[Callable[[_Builder], None], ...] = (
    _unary, _binary, _binary, _scalar, _broadcast, _product, _concatenate, _several, _convert, _new, _transpose, _part,
    _row, _flatten, _widen, _split, _write, _write, _write,
)  # fmt: skip

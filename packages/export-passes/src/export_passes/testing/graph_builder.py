"""A builder of exported graphs without tracing: operators on values that are there already, chosen at random."""

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
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

SHAPES = ((3,), (2, 3), (3, 2), (3, 3), (2, 3, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltMethod:
    """What lowering reads of an exported program."""

    graph: Graph
    graph_signature: ExportGraphSignature
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    range_constraints: dict[Any, Any]


def random_tensor(rng: random.Random, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of quarters between -2 and 2."""
    count = 1
    for size in shape:
        count *= size
    return torch.tensor([rng.randint(-8, 8) / 4 for _ in range(count)]).reshape(shape)


Step = Callable[["GraphBuilder"], None]


class GraphBuilder:
    """Adds operators one by one, each on values that are there; real tensors say what comes out.

    Only placeholders carry fake tensors, as lowering asks for.
    """

    def __init__(self, rng: random.Random, fake_mode: FakeTensorMode, buffers: Mapping[str, torch.Tensor]) -> None:
        self.rng = rng
        self._fake_mode = fake_mode
        self._buffers = buffers
        self._graph = Graph()
        self.values: list[Node] = []
        self._tensors: dict[Node, torch.Tensor] = {}
        self.unwritable: set[Node] = set()
        self._specs: list[InputSpec] = []
        self._inputs: list[torch.Tensor] = []

    def build(self, operators: int, steps: Sequence[Step]) -> tuple[BuiltMethod, Sequence[torch.Tensor]]:
        """Return a method and inputs for it."""
        for name, tensor in self._buffers.items():
            self._placeholder(f"b_{name}", tensor, InputKind.BUFFER, name)
        for i in range(self.rng.randint(1, 3)):
            self._inputs.append(random_tensor(self.rng, self.rng.choice(SHAPES)))
            self._placeholder(f"x{i}", self._inputs[-1], InputKind.USER_INPUT, None)
        for _ in range(operators):
            self.rng.choice(steps)(self)
        outputs = [self.pick() for _ in range(self.rng.randint(1, 4))]
        self._graph.output(tuple(outputs))
        return self._exported(outputs), self._inputs

    def pick(self, rank: int | None = None) -> Node:
        """Return some value, recent ones more often."""
        fitting = [v for v in self.values if rank is None or v.meta["val"].dim() == rank]
        recent = fitting[-4:] if self.rng.random() < 0.6 else fitting
        return self.rng.choice(recent or self.values)

    def like(self, node: Node) -> Node:
        """Return some value of the sizes and dtype of `node`."""
        value = node.meta["val"]
        return self.rng.choice(
            [v for v in self.values if v.meta["val"].shape == value.shape and v.meta["val"].dtype == value.dtype]
        )

    def writable(self) -> Node | None:
        """Return some value that may be written: none with two elements in one place."""
        found = [v for v in self.values if v not in self.unwritable]
        if self.chance(0.4):
            state = [v for v in found if v.name.startswith("b_")]
            found = state or found
        return self.rng.choice(found) if found else None

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`."""
        return self.rng.randint(low, high)

    def add(self, target: Callable[..., Any], *args: Any, writable: bool = True, **kwargs: Any) -> None:
        """Append an operator; its results become values."""
        node = self._graph.call_function(target, args, kwargs)
        result = target(*map_arg(args, self._tensors.get), **map_arg(kwargs, self._tensors.get))
        writable = writable and not any(a in self.unwritable for a in args if isinstance(a, Node))
        if isinstance(result, torch.Tensor):
            self._keep(node, result, writable)
            return
        for i, item in enumerate(result):
            self._keep(self._graph.call_function(operator.getitem, (node, i)), item, writable)

    def _keep(self, node: Node, tensor: torch.Tensor, writable: bool) -> None:
        node.meta.setdefault("val", tensor)
        self._tensors[node] = tensor
        self.values.append(node)
        if not writable:
            self.unwritable.add(node)

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

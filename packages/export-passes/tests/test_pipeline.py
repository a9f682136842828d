"""The pipeline: passes run twice change nothing, failures say where, conditions are checked."""

from collections.abc import Callable

import pytest
import torch
from device_core import Device
from export_passes import BackendConfig, ExportError, MethodConfig, PassError, Placement
from export_passes.graph_pass import GraphPass, MethodPass, NodeError, failures_at, run_pass
from export_passes.importer import import_program
from export_passes.method_graph import MethodGraph, ProgramGraph
from export_passes.pipeline import passes_of, run_passes
from export_passes.testing import Apply, Cache, MethodOf
from torch.export import Dim, export
from torch.fx import Node
from torch.fx.node import map_arg

DEVICES = (Device.parse("cpu"), Device.parse("cuda:0"), Device.parse("cuda:1"))


def spread(method: str, node: Node) -> Placement:
    return Placement(DEVICES[len(node.name) % 3])


def busy(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.cat([x, y]).sin()
    low, high = h.chunk(2, -1)
    low.mul_(2)
    values, indices = torch.sort(h, dim=-1)
    return values.t() + 1, indices[0], high.reshape(-1), x, h


def branching(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    h = torch.cond(x.sum() > 0, lambda x, y: x.sin() + y, lambda x, y: (x * y).exp(), (x, y))
    return h.cos() + x


def described(program: ProgramGraph) -> list[str]:
    """Return a line a node, by their numbers: names do not count."""
    lines = []
    for method in program.methods:
        numbers = {node: f"n{i}" for i, node in enumerate(method.graph.nodes)}
        for node in method.graph.nodes:
            arguments = map_arg((node.args, node.kwargs), lambda n, numbers=numbers: numbers[n])
            target = "" if node.op == "placeholder" else node.target
            meta = [node.meta.get(key) for key in ("source", "spec", "device")]
            lines.append(f"{method.name}: {numbers[node]} {node.op} {target} {arguments} {meta}")
    return lines


def imported(plan_outputs: bool) -> tuple[ProgramGraph, BackendConfig]:
    model, row = Cache(), torch.tensor([1])
    dynamic = {"args": ({0: Dim("n", min=2, max=9)}, None)}
    methods = {
        "busy": export(Apply(busy), (torch.ones(3, 4), torch.ones(2, 4)), dynamic_shapes=dynamic),
        "branching": export(Apply(branching), (torch.ones(3, 4), torch.ones(4))),
        "write": export(model, (torch.ones(2, 4), torch.tensor([1, 3]))),
        "read": export(MethodOf(model, "read"), (row,)),
    }
    config = BackendConfig(partitioner=spread, default=MethodConfig(plan_outputs=plan_outputs))
    return import_program(methods, config), config


@pytest.mark.parametrize("plan_outputs", [True, False], ids=["planned-outputs", "callers-outputs"])
def test_every_pass_run_again_changes_nothing(plan_outputs: bool) -> None:
    program, config = imported(plan_outputs)
    done: list[GraphPass] = []
    for graph_pass in passes_of(config):
        run_pass(graph_pass, program)
        once = described(program)
        run_pass(graph_pass, program)
        assert described(program) == once, graph_pass.name
        done.append(graph_pass)


def test_passes_after_decompose_run_again_as_a_whole() -> None:
    program, config = imported(True)
    passes = passes_of(config)
    run_passes(program, passes)
    once = described(program)
    run_passes(program, passes[passes.index(next(p for p in passes if p.name == "specs")) :])
    assert described(program) == once


class Failing(MethodPass):
    name = "failing"

    def __init__(self, action: Callable[[MethodGraph], None]) -> None:
        self._action = action

    def run_on(self, method: MethodGraph) -> None:
        self._action(method)


def at_node(method: MethodGraph) -> None:
    with failures_at(method.operators[0]):
        raise ZeroDivisionError("no")


def without_node(method: MethodGraph) -> None:
    raise KeyError("lost")


def said(method: MethodGraph) -> None:
    raise NodeError(method.operators[1], "is odd")


FAILURES = [
    pytest.param(at_node, r"pass failing, method 'busy', node 'cat': ZeroDivisionError: no", id="at-node"),
    pytest.param(without_node, r"pass failing, method 'busy': KeyError: 'lost'", id="without-node"),
    pytest.param(said, r"pass failing, method 'busy', node 'sin': is odd", id="said"),
]


@pytest.mark.parametrize(("action", "message"), FAILURES)
def test_failures_name_pass_method_and_node(action: Callable[[MethodGraph], None], message: str) -> None:
    program, _ = imported(True)
    with pytest.raises(PassError, match=message) as caught:
        run_pass(Failing(action), program)
    assert isinstance(caught.value, ExportError)
    assert (caught.value.pass_name, caught.value.method) == ("failing", "busy")


def test_conditions_are_checked_before_and_after() -> None:
    seen = []

    class Watching(MethodPass):
        name = "watching"

        def requires(self, method: MethodGraph) -> None:
            seen.append(f"before {method.name}")

        def run_on(self, method: MethodGraph) -> None:
            seen.append(method.name)

        def ensures(self, method: MethodGraph) -> None:
            raise ValueError("not done")

    program, _ = imported(True)
    with pytest.raises(PassError, match=r"pass watching, method 'busy': ValueError: not done"):
        run_pass(Watching(), program)
    names = ["busy", "branching", "write", "read"]
    assert seen == [*(f"before {name}" for name in names), *names]


def test_passes_that_come_too_early_say_so() -> None:
    program, config = imported(True)
    late = next(p for p in passes_of(config) if p.name == "out_variants")
    with pytest.raises(PassError, match=r"pass out_variants, method 'busy', node .*has no spec"):
        run_pass(late, program)

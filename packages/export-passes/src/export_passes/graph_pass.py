"""`GraphPass`: a step of the pipeline, with the conditions that hold before and after it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.fx import Node

from export_passes.errors import ExportError, PassError
from export_passes.method_graph import MethodGraph, ProgramGraph


class NodeError(ExportError):
    """Something wrong with one node; the pass that runs adds its name and the method's."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


class GraphPass(ABC):
    """One pass over a program. Running it twice changes nothing the second time."""

    name: str

    def requires(self, method: MethodGraph) -> None:  # noqa: B027 - most passes take any graph
        """Raise where `method` is not in the form this pass needs."""

    @abstractmethod
    def run(self, program: ProgramGraph) -> None:
        """Rewrite the program."""

    def ensures(self, method: MethodGraph) -> None:  # noqa: B027 - what `run` does may be all
        """Raise where the pass has not done what it promises."""


class MethodPass(GraphPass):
    """A pass that looks at one method at a time."""

    @abstractmethod
    def run_on(self, method: MethodGraph) -> None:
        """Rewrite one method."""

    def run(self, program: ProgramGraph) -> None:
        """Rewrite each method in turn."""
        for method in program.methods:
            with failures_named(self.name, method.name):
                self.run_on(method)


def run_pass(graph_pass: GraphPass, program: ProgramGraph) -> None:
    """Run one pass with its conditions; raises PassError, which names pass, method and node."""
    _each(graph_pass.name, program, graph_pass.requires)
    with failures_named(graph_pass.name, ", ".join(method.name for method in program.methods)):
        graph_pass.run(program)
    _each(graph_pass.name, program, graph_pass.ensures)


@contextmanager
def failures_named(pass_name: str, method: str) -> Iterator[None]:
    """Turn any failure within the block into a PassError that says where it happened."""
    try:
        yield
    except PassError:
        raise
    except NodeError as error:
        raise PassError(pass_name, method, error.node.name, str(error)) from error
    except Exception as error:
        raise PassError(pass_name, method, None, f"{type(error).__name__}: {error}") from error


@contextmanager
def failures_at(node: Node) -> Iterator[None]:
    """Name `node` in whatever fails within the block."""
    try:
        yield
    except NodeError:
        raise
    except ExportError as error:
        raise NodeError(node, str(error)) from error
    except Exception as error:
        raise NodeError(node, f"{type(error).__name__}: {error}") from error


def _each(pass_name: str, program: ProgramGraph, condition: Callable[[MethodGraph], None]) -> None:
    for method in program.methods:
        with failures_named(pass_name, method.name):
            condition(method)

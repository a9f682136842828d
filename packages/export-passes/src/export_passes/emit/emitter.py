"""The emitter: graphs with planned memory become the methods of a program."""

from dataclasses import dataclass
from importlib.metadata import version

import torch
from device_core.schema import types as t
from torch.fx import Node

from export_passes.branches import begin, end, is_control, is_join, move
from export_passes.emit.constants import ConstantTable, collect_constants
from export_passes.emit.values import ValueTable
from export_passes.graph_pass import failures_at, failures_named
from export_passes.memory_plan.planner import MemoryPlan
from export_passes.method_graph import MethodGraph, ProgramGraph, is_allocation, is_computation, mutated_by


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedMethod:
    """A method, the tensors that became its values, and the payloads of its opaque regions by key."""

    method: t.Method
    tensors: list[Node]
    delegates: dict[str, bytes]


def emit_program(
    program: ProgramGraph, plans: dict[str, MemoryPlan]
) -> tuple[t.Program, ConstantTable, dict[str, bytes]]:
    """Emit all methods; returns the program, its constants and the payloads of opaque regions."""
    emitted = []
    for method in program.methods:
        with failures_named("emit", method.name):
            emitted.append(emit_method(method, plans[method.name]))
    table = collect_constants(program, [node for e in emitted for node in e.tensors])
    delegates = {key: payload for e in emitted for key, payload in e.delegates.items()}
    result = t.Program(
        producer=f"export-passes {version('export-passes')}, torch {torch.__version__}",
        constants=table.constants,
        state=table.state,
        methods=tuple(e.method for e in emitted),
    )
    return result, table, delegates


def emit_method(method: MethodGraph, plan: MemoryPlan) -> EmittedMethod:
    """Emit one method: inputs first, then calls in the order of the graph."""
    emitter = _Emitter(method, plan)
    inputs = tuple(emitter.table.index(node) for node in method.placeholders if node.meta["source"].kind == "input")
    for node in method.operators:
        if is_computation(node) and not is_allocation(node):
            with failures_at(node):
                emitter.add(node)
    with failures_at(method.output_node):
        outputs = tuple(emitter.table.index(value) for value in method.outputs)
    emitted = t.Method(
        name=method.name,
        symbols=method.symbols.symbols,
        values=tuple(emitter.table.values),
        inputs=inputs,
        outputs=outputs,
        buffers=plan.buffers,
        operators=tuple(emitter.operators),
        delegates=tuple(emitter.delegates),
        instructions=tuple(emitter.instructions),
    )
    return EmittedMethod(method=emitted, tensors=emitter.table.tensors, delegates=emitter.payloads)


class _Emitter:
    """Turns calls into instructions."""

    def __init__(self, method: MethodGraph, plan: MemoryPlan) -> None:
        self.table = ValueTable(method, plan)
        self.operators: dict[str, int] = {}
        self.delegates: list[t.Delegate] = []
        self.payloads: dict[str, bytes] = {}
        self.instructions: list[t.Instruction] = []
        # Jumps whose targets are not yet known, those of inner branches last.
        self._open: list[int] = []

    def add(self, node: Node) -> None:
        """Emit a call or what `node` means for the way through the method."""
        if node.target is move:
            target, source = (self.table.index(value) for value in node.args)
            self.instructions.append(t.Move(source=source, target=target))
        elif is_control(node):
            jumped = self._open.pop() if is_join(node) else None
            if node.target is not end:
                self._open.append(len(self.instructions))
                condition = self.table.index(node.args[0] if node.target is begin else False)
                self.instructions.append(t.JumpFalse(condition=condition, target=0))
            if jumped is not None:
                self._land(jumped)
        else:
            self.instructions.append(self.region(node) if "region" in node.meta else self.kernel(node))

    def _land(self, jump: int) -> None:
        """Let a jump go to the instruction that comes next."""
        open_jump = self.instructions[jump]
        assert isinstance(open_jump, t.JumpFalse)
        self.instructions[jump] = t.JumpFalse(condition=open_jump.condition, target=len(self.instructions))

    def kernel(self, node: Node) -> t.KernelCall:
        """Emit the call of an operator."""
        assert isinstance(node.target, torch._ops.OpOverload)
        return t.KernelCall(
            operator=self.operators.setdefault(node.target.name(), len(self.operators)),
            args=tuple(self.table.index(value) for value in node.args),
            kwargs={name: self.table.index(value) for name, value in node.kwargs.items()},
            outputs=self._written(node),
        )

    def region(self, node: Node) -> t.DelegateCall:
        """Emit the call of an opaque region."""
        compiled = node.meta["region"]
        self.payloads[compiled.key] = compiled.payload
        self.delegates.append(
            t.Delegate(
                backend=compiled.backend, key=compiled.key, region=compiled.name, device=str(node.meta["device"])
            )
        )
        count = len(node.args) - compiled.results
        return t.DelegateCall(
            delegate=len(self.delegates) - 1,
            args=tuple(self.table.index(value) for value in node.args[:count]),
            outputs=tuple(self.table.index(value) for value in node.args[count:]),
        )

    def _written(self, node: Node) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.table.index(written) for written in mutated_by(node)))

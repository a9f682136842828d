"""What must hold of the instructions of a method: what they refer to and what they write."""

from collections.abc import Iterator, Sequence

from device_core.schema import types as t


def instruction_problems(method: t.Method) -> list[str]:
    """Return what is wrong with the instructions of a method whose tables are right."""
    problems = []
    for i, instruction in enumerate(method.instructions):
        where = f"instruction {i} ({type(instruction).__name__})"
        found = list(_index_problems(method, instruction))
        if not found:
            found = list(_instruction_problems(method, instruction))
        problems += [f"{where}: {text}" for text in found]
    return problems


def read_by(method: t.Method, instruction: t.Instruction) -> tuple[int, ...]:
    """Return the values that an instruction refers to, items of lists included, outputs included."""
    match instruction:
        case t.KernelCall(args=args, kwargs=kwargs, outputs=outputs):
            direct: Sequence[int] = (*args, *kwargs.values(), *outputs)
        case t.DelegateCall(args=args, outputs=outputs):
            direct = (*args, *outputs)
        case t.Move(source=source, target=target):
            direct = (source, target)
        case t.JumpFalse(condition=condition):
            direct = (condition,)
    found: list[int] = []
    for i in direct:
        value = method.values[i] if i < len(method.values) else None
        found += [i, *value.items] if isinstance(value, t.ListValue) else [i]
    return tuple(found)


def _index_problems(method: t.Method, instruction: t.Instruction) -> Iterator[str]:
    for i in read_by(method, instruction):
        if i >= len(method.values):
            yield f"value {i}: there are {len(method.values)}"
    match instruction:
        case t.KernelCall(operator=operator) if operator >= len(method.operators):
            yield f"operator {operator}: there are {len(method.operators)}"
        case t.DelegateCall(delegate=delegate) if delegate >= len(method.delegates):
            yield f"delegate {delegate}: there are {len(method.delegates)}"
        case t.JumpFalse(target=target) if target > len(method.instructions):
            yield f"target {target}: there are {len(method.instructions)} instructions"


def _instruction_problems(method: t.Method, instruction: t.Instruction) -> Iterator[str]:
    values = method.values
    match instruction:
        case t.KernelCall(outputs=outputs):
            passed = read_by(method, t.KernelCall(operator=0, args=instruction.args, kwargs=instruction.kwargs))
            for i in outputs:
                yield from _target_problems(method, i)
                if i not in passed:
                    yield f"output {i} is not among its arguments"
            homes = {value.device for i in passed if isinstance(value := values[i], t.TensorValue)}
            if len(homes) > 1 and not method.operators[instruction.operator].startswith("device_copy::"):
                yield f"{method.operators[instruction.operator]}: its tensors are on {', '.join(sorted(homes))}"
        case t.DelegateCall(args=args, outputs=outputs):
            for i in outputs:
                yield from _target_problems(method, i)
            for i in args:
                if not isinstance(values[i], t.TensorValue | t.SymIntValue | t.ScalarValue):
                    yield f"argument {i}: expected a tensor or number"
        case t.Move(source=source, target=target):
            yield from _target_problems(method, target)
            a, b = values[source], values[target]
            if not isinstance(a, t.TensorValue):
                yield f"source {source}: expected a tensor"
            elif isinstance(b, t.TensorValue) and (a.dtype, a.sizes, a.device) != (b.dtype, b.sizes, b.device):
                yield f"source {source} and target {target} differ in dtype, sizes or device"
        case t.JumpFalse(condition=condition):
            match values[condition]:
                case t.TensorValue(dtype="bool", device="cpu") | t.ScalarValue(value=True) | t.ScalarValue(value=False):
                    pass
                case _:
                    yield f"condition {condition}: expected a flag or a bool tensor on the host"


def _target_problems(method: t.Method, index: int) -> Iterator[str]:
    match method.values[index]:
        case t.TensorValue(storage=t.Constant(name=name)):
            yield f"value {index} lies in constant {name!r}, which nothing may write"
        case t.TensorValue():
            pass
        case _:
            yield f"value {index}: expected a tensor"

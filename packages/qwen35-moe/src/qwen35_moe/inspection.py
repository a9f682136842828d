"""What a program holds, for people (tables) and for programs (JSON)."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from device_core import MethodMeta
from device_core.schema import types as t


def program_document(program: t.Program) -> dict[str, Any]:
    """Return the program without the bytes of its constants, values spelled out where instructions name them."""
    return {
        "schema_version": program.schema_version,
        "producer": program.producer,
        "metadata": dict(program.metadata),
        "methods": [_method_document(method) for method in program.methods],
        "constants": {
            name: {"dtype": spec.dtype, "sizes": list(spec.sizes), "nbytes": _nbytes(spec), "shard": spec.shard}
            for name, spec in program.constants.items()
        },
        "state": {
            name: {"dtype": spec.dtype, "sizes": list(spec.sizes), "nbytes": _nbytes(spec), "device": spec.device}
            for name, spec in program.state.items()
        },
    }


def _method_document(method: t.Method) -> dict[str, Any]:
    meta = MethodMeta.of(method)
    return {
        "name": method.name,
        "symbols": [{"name": s.name, "min": s.min, "max": s.max} for s in meta.symbols],
        "inputs": [value_document(method, index) for index in method.inputs],
        "outputs": [value_document(method, index) for index in method.outputs],
        "buffers": [{"nbytes": b.nbytes, "device": str(b.device), "kind": b.kind} for b in meta.buffers],
        "instructions": [_instruction_document(method, instruction) for instruction in method.instructions],
    }


def value_document(method: t.Method, index: int) -> dict[str, Any]:
    """Return one value: a tensor with dtype, sizes, device and where its bytes live, or what else it is."""
    value = method.values[index]
    document: dict[str, Any] = {"name": value.name}
    if isinstance(value, t.TensorValue):
        document |= {"dtype": value.dtype, "sizes": list(value.sizes), "device": value.device}
        document["storage"] = _storage(value.storage)
    elif isinstance(value, t.SymIntValue):
        document["expression"] = value.expression
    elif isinstance(value, t.ListValue):
        document["items"] = [method.values[item].name for item in value.items]
    elif isinstance(value, t.DtypeValue):
        document["dtype"] = value.dtype
    else:
        document["value"] = value.value
    return document


def _storage(storage: t.Storage) -> dict[str, Any]:
    if isinstance(storage, t.Planned):
        return {"kind": "planned", "buffer": storage.buffer, "offset_bytes": storage.offset_bytes}
    if isinstance(storage, t.Bound):
        return {"kind": "bound", "value": storage.value, "offset_bytes": storage.offset_bytes}
    kind = "constant" if isinstance(storage, t.Constant) else "state"
    return {"kind": kind, "name": storage.name, "offset_bytes": storage.offset_bytes}


def _instruction_document(method: t.Method, instruction: t.Instruction) -> dict[str, Any]:
    def names(indices: tuple[int, ...]) -> list[str]:
        return [method.values[index].name for index in indices]

    match instruction:
        case t.KernelCall():
            return {
                "kind": "kernel",
                "operator": method.operators[instruction.operator],
                "args": names(instruction.args),
                "kwargs": {name: method.values[index].name for name, index in instruction.kwargs.items()},
                "outputs": names(instruction.outputs),
            }
        case t.DelegateCall():
            delegate = method.delegates[instruction.delegate]
            return {
                "kind": "delegate",
                "backend": delegate.backend,
                "region": delegate.region,
                "device": delegate.device,
                "args": names(instruction.args),
                "outputs": names(instruction.outputs),
            }
        case t.Move():
            source, target = names((instruction.source, instruction.target))
            return {"kind": "move", "source": source, "target": target}
        case t.JumpFalse():
            (condition,) = names((instruction.condition,))
            return {"kind": "jump_false", "condition": condition, "target": instruction.target}


def describe(program: t.Program) -> Iterator[str]:
    """Yield tables: the program, then for each method its inputs and outputs, buffers and instructions."""
    document = program_document(program)
    yield f"program by {program.producer}, schema {program.schema_version}"
    yield _table("metadata", ("key", "value"), program.metadata.items())
    for method in document["methods"]:
        yield from _describe_method(method)
    rows = [(n, s["dtype"], _sizes(s["sizes"]), s["device"], f"{s['nbytes']:,}") for n, s in document["state"].items()]
    yield _table("state", ("name", "dtype", "sizes", "device", "bytes"), rows)
    constants = document["constants"]
    rows = [(n, c["dtype"], _sizes(c["sizes"]), f"{c['nbytes']:,}", c["shard"]) for n, c in constants.items()]
    total = sum(constant["nbytes"] for constant in constants.values())
    yield _table(f"{len(constants)} constants, {total:,} bytes", ("name", "dtype", "sizes", "bytes", "shard"), rows)


def _describe_method(method: dict[str, Any]) -> Iterator[str]:
    name = method["name"]
    if method["symbols"]:
        symbols = [(symbol["name"], symbol["min"], symbol["max"]) for symbol in method["symbols"]]
        yield _table(f"{name}: symbols", ("name", "min", "max"), symbols)
    for part in ("inputs", "outputs"):
        values = [
            (v["name"], v.get("dtype", ""), _sizes(v.get("sizes", ())), v.get("device", "")) for v in method[part]
        ]
        yield _table(f"{name}: {part}", ("name", "dtype", "sizes", "device"), values)
    buffers = [(index, f"{b['nbytes']:,}", b["device"], b["kind"]) for index, b in enumerate(method["buffers"])]
    yield _table(f"{name}: planned buffers", ("buffer", "bytes", "device", "kind"), buffers)
    told = [(index, *_told(each)) for index, each in enumerate(method["instructions"])]
    yield _table(f"{name}: {len(told)} instructions", ("#", "what", "writes", "reads"), told)


def _told(instruction: dict[str, Any]) -> tuple[str, str, str]:
    """Return an instruction as what it calls, what it writes, and what it reads."""
    match instruction["kind"]:
        case "kernel":
            written = instruction["outputs"]
            read = [*instruction["args"], *instruction["kwargs"].values()]
            return instruction["operator"], " ".join(written), " ".join(name for name in read if name not in written)
        case "delegate":
            what = f"{instruction['backend']} {instruction['region']}"
            return what, " ".join(instruction["outputs"]), " ".join(instruction["args"])
        case "move":
            return "move", instruction["target"], instruction["source"]
        case _:
            return f"jump to {instruction['target']} if not", "", instruction["condition"]


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return aligned columns under a title; nothing is cut, however wide it is."""
    cells = [columns, *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines), ""])


def _sizes(sizes: Any) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]" if sizes != () else ""


def _nbytes(spec: t.ConstantSpec | t.StateSpec) -> int:
    return math.prod(spec.sizes) * int(getattr(torch, spec.dtype).itemsize)

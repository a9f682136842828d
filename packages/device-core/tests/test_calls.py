"""Calls: their schemas, failures, jumps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_core import (
    Module,
    ProgramError,
)
from device_core.schema import types as t
from device_core.testing import MethodBuilder, write_program

Folder = Callable[..., Path]


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def bad_call(name: str) -> t.Method:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (4,))
    weight = method.constant("weight", "float32", (4,))
    out = method.planned("out", "float32", (4,), kind="io")
    match name:
        case "too-many":
            method.call("aten::neg.out", x, x, x, out=out)
        case "missing":
            method.call("aten::add.out", x, out=out)
        case "unexpected":
            method.call("aten::neg.out", x, beta=x, out=out)
        case "writes-constant":
            method.instructions.append(t.KernelCall(operator=0, args=(weight,), outputs=()))
            method._operators.append("aten::neg_")
        case "silent-write":
            method.call("aten::neg_", x)
    return method.build([out])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too-many", "at most 1 positional arguments, got 3"),
        ("missing", "argument 'other' is missing"),
        ("unexpected", "unexpected argument 'beta'"),
        ("writes-constant", "into constant 'weight'"),
        ("silent-write", "not among its outputs"),
    ],
    ids=lambda x: x if " " not in x else "",
)
def test_calls_must_fit_their_schema(tmp_path: Path, name: str, message: str) -> None:
    write_program(tmp_path / "p", [bad_call(name)], constants={"weight": WEIGHT})
    with pytest.raises(ProgramError, match=message):
        Module.load(tmp_path / "p")


def test_failing_call_says_where(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x, y = method.input("x", "float32", (4,)), method.input("y", "float32", (3,))
    out = method.planned("out", "float32", (4,), kind="io")
    method.call("aten::add.out", x, y, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module, pytest.raises(RuntimeError) as caught:
        module.execute("f", [torch.ones(4), torch.ones(3)])
    assert caught.value.__notes__ == ["in method 'f', instruction 0: aten::add.out"]


def test_operators_that_resize_are_found(tmp_path: Path) -> None:
    method = MethodBuilder("f", symbols={"s0": (1, 4)})
    x, y = method.input("x", "float32", ("s0",)), method.input("y", "float32", (1,))
    out = method.planned("out", "float32", ("2*s0",), kind="io")
    method.call("aten::add.out", x, y, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module, pytest.raises(ProgramError, match=r"sizes \(6,\), but .* \(3,\)"):
        module.execute("f", [torch.ones(3), torch.ones(1)])


def loop_program(folder: Path, *, step: int) -> Path:
    """Write `while x > 0: x -= step` with jumps."""
    method = MethodBuilder("f")
    x = method.input("x", "int64", (1,))
    left = method.planned("left", "int64", (1,), kind="io")
    more = method.planned("more", "bool", (1,))
    zero, one, never = method.literal(0), method.literal(step), method.literal(False)
    method.instructions.append(t.Move(source=x, target=left))
    method.call("aten::gt.Scalar_out", left, zero, out=more)
    method.instructions.append(t.JumpFalse(condition=more, target=5))
    method.call("aten::sub_.Scalar", left, one, writes=(left,))
    method.instructions.append(t.JumpFalse(condition=never, target=1))
    write_program(folder, [method.build([left])])
    return folder


def test_jumps(tmp_path: Path) -> None:
    with Module.load(loop_program(tmp_path / "p", step=3)) as module:
        assert module.execute("f", [torch.tensor([10])])[0].item() == -2
        assert module.execute("f", [torch.tensor([-7])])[0].item() == -7


def test_endless_loops_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_core.runtime.calls.MAX_STEPS", 1000)
    with Module.load(loop_program(tmp_path / "p", step=0)) as module:
        with pytest.raises(ProgramError, match="did not end within 1,000 instructions"):
            module.execute("f", [torch.tensor([10])])
        assert module.execute("f", [torch.tensor([-1])])[0].item() == -1

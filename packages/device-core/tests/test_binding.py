"""Values of every kind as inputs, arguments and outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from device_core import (
    InputError,
    Module,
)
from device_core.schema import types as t
from device_core.testing import MethodBuilder, write_program

Folder = Callable[..., Path]


WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def all_kinds(folder: Path) -> Path:
    """Write a method with a symbolic input, a fixed one, lists, dtypes, and every kind of output."""
    method = MethodBuilder("f", symbols={"n": (0, 5)})
    n = method.input_value(t.SymIntValue(name="n", expression="n"))
    x = method.input("x", "float32", (2, 3))
    scale = method.input_value(t.ScalarValue(name="scale", value=2.0))
    planned = method.value(
        t.TensorValue(
            name="y", dtype="float32", sizes=(2, 3), strides=(3, 1), storage=t.Planned(buffer=0, offset_bytes=0)
        )
    )
    method._buffers["cpu", "io"] = 24
    method._inputs.append(planned)
    both = method.planned("both", "float32", (2, 6), kind="io")
    supplied = method.supplied("supplied", "float32", (2, 6))
    column = method.value(
        t.TensorValue(name="column", dtype="int32", sizes=(2,), strides=(3,), storage=t.Bound(value=x, offset_bytes=4))
    )
    constant = method.constant("weight", "float32", (4,))
    tensors = method.value(t.ListValue(name="tensors", items=(x, planned)))
    dtype = method.value(t.DtypeValue(name="dtype", dtype="float64"))
    dims = method.literal([0])
    total = method.planned("total", "float64", (6,), kind="io")
    method.call("aten::cat.out", tensors, method.literal(1), out=both)
    method.call("aten::mul.Scalar_out", both, scale, out=supplied)
    method.call("aten::sum.IntList_out", both, dims, method.literal(False), dtype=dtype, out=total)
    twice = method.value(t.SymIntValue(name="twice", expression="2*n + 1"))
    infinite = method.value(t.NonFiniteValue(name="infinite", value="-inf"))
    outputs = [both, supplied, x, column, constant, twice, scale, infinite, total, both, n]
    write_program(folder, [method.build(outputs)], constants={"weight": WEIGHT})
    return folder


def test_every_kind_of_value(tmp_path: Path) -> None:
    with Module.load(all_kinds(tmp_path / "p")) as module:
        x, y, memory = torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 6)
        outputs = module.execute("f", [3, x, 2.0, y], outputs=[None, memory])
        both, supplied, x_out, column, weight, twice, scale, infinite, total, again, n = outputs
        assert torch.equal(both, torch.cat([x, y], 1))
        assert supplied is memory
        assert torch.equal(memory, both * 2.0)
        assert x_out is x
        assert torch.equal(column, x.view(torch.int32)[:, 1])
        assert (twice, scale, infinite, n) == (7, 2.0, float("-inf"), 3)
        assert total.dtype == torch.float64
        torch.testing.assert_close(total, both.double().sum(0))
        assert again.data_ptr() == both.data_ptr()
        weight.zero_()
        assert torch.equal(module.execute("f", [3, x, 2.0, y], outputs=[None, memory])[4], WEIGHT)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((3, 2.5), [None, torch.zeros(2, 6)], "expected 2.0, as exported, got 2.5"),
        ((3, 2), [None, torch.zeros(2, 6)], "expected 2.0, as exported, got 2"),
        ((6, 2.0), [None, torch.zeros(2, 6)], "n: expected 0 to 5, got 6"),
        ((True, 2.0), [None, torch.zeros(2, 6)], "expected an int, got True"),
        ((3, 2.0), [], r"memory for output 1 \(supplied\): expected a tensor, got NoneType"),
        ((3, 2.0), [None, torch.zeros(2, 6).double()], "expected torch.float32"),
    ],
    ids=["other-scalar", "int-for-float", "symbol-range", "bool", "no-memory", "memory-dtype"],
)
def test_wrong_scalars_and_memory(
    tmp_path: Path, inputs: tuple[int, float], outputs: list[torch.Tensor], message: str
) -> None:
    with Module.load(all_kinds(tmp_path / "p")) as module, pytest.raises(InputError, match=message):
        module.execute("f", [inputs[0], torch.ones(2, 3), inputs[1], torch.ones(2, 3)], outputs=outputs)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_scalar_that_is_not_finite(tmp_path: Path, text: Literal["inf", "-inf", "nan"]) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (2,))
    bound = method.input_value(t.NonFiniteValue(name="bound", value=text))
    out = method.planned("out", "float32", (2,), kind="io")
    method.call("aten::mul.Scalar_out", x, bound, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module:
        (given,) = module.execute("f", [torch.ones(2), float(text)])
        torch.testing.assert_close(given, torch.full((2,), float(text)), equal_nan=True)
        with pytest.raises(InputError, match=f"expected {text}, as exported, got 1.0"):
            module.execute("f", [torch.ones(2), 1.0])


def test_size_that_no_symbol_satisfies(tmp_path: Path) -> None:
    method = MethodBuilder("f", symbols={"s0": (1, 4)})
    x = method.input("x", "float32", ("2*s0",))
    out = method.planned("out", "float32", ("2*s0",), kind="io")
    method.call("aten::neg.out", x, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module:
        assert module.execute("f", [torch.ones(6)])[0].shape == (6,)
        with pytest.raises(InputError, match=r"expected 2\*s0, got 5"):
            module.execute("f", [torch.ones(5)])

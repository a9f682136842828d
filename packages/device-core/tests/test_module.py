"""Modules and sessions on the host: execution, sizes, state, arguments, lifetime."""

import gc
import resource
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from device_core import (
    ClosedError,
    Device,
    DeviceError,
    InputError,
    MissingOperatorError,
    Module,
    OutOfMemoryError,
    ProgramError,
)
from device_core.runtime.session import LINKED_SIZES
from device_core.schema import types as t
from device_core.testing import MethodBuilder, write_program

Folder = Callable[..., Path]
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_state_lives_from_call_to_call(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        total = torch.arange(4.0)
        for _ in range(5):
            x = torch.randn(4)
            total = total + x
            (out,) = module.execute("step", [x])
            assert torch.equal(out, total * WEIGHT)
        assert torch.equal(module.default_session.state["total"], total)
        module.default_session.reset()
        assert torch.equal(module.default_session.state["total"], torch.arange(4.0))


@pytest.mark.parametrize("rows", [8, 1, 3, 2], ids="rows{}".format)
def test_sizes_may_change(stateful: Folder, rows: int) -> None:
    with Module.load(stateful()) as module:
        for count in (rows, 5, rows):
            x = torch.randn(count, 4)
            (out,) = module.execute("rows", [x])
            assert torch.equal(out, x * WEIGHT + x[-1:])


def test_linked_sizes_are_bounded(tmp_path: Path) -> None:
    method = MethodBuilder("f", symbols={"s0": (1, 1000)})
    x = method.input("x", "float32", ("s0",))
    out = method.planned("out", "float32", ("s0",), kind="io")
    method.call("aten::neg.out", x, out=out)
    write_program(tmp_path / "p", [method.build([out])])
    with Module.load(tmp_path / "p") as module:
        session = module.default_session
        for size in range(1, 4 * LINKED_SIZES):
            x_1 = torch.randn(size)
            assert torch.equal(session.execute("f", [x_1])[0], -x_1)
        assert len(session._linked["f"]) == LINKED_SIZES


def test_sessions_do_not_see_each_other(stateful: Folder) -> None:
    with Module.load(stateful()) as module, module.new_session() as a, module.new_session() as b:
        xs = torch.randn(6, 4)
        alone = [module.execute("step", [x])[0].clone() for x in xs]
        module.default_session.state["total"].fill_(float("nan"))
        for i in range(6):
            assert torch.equal(a.execute("step", [xs[i]])[0], alone[i])
            assert torch.equal(b.execute("step", [xs[i]])[0], alone[i])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "expected 1 inputs, got 0"),
        ([torch.zeros(2, 4)] * 2, "expected 1 inputs, got 2"),
        ([3], "expected a tensor, got int"),
        ([torch.zeros(4)], r"expected sizes \(s0, 4\), got \(4,\)"),
        ([torch.zeros(2, 5)], r"expected sizes \(2, 4\), got \(2, 5\)"),
        ([torch.zeros(9, 4)], "s0: expected 1 to 8, got 9"),
        ([torch.zeros(0, 4)], "s0: expected 1 to 8, got 0"),
        ([torch.zeros(2, 4).double()], "expected torch.float32, got torch.float64"),
        ([torch.zeros(4, 2).t()], r"expected strides \(4, 1\), got \(1, 2\)"),
        ([torch.zeros(2, 4, device="meta")], "expected a tensor on cpu, got one on meta"),
    ],
    ids=["none", "two", "number", "rank", "size", "above", "below", "dtype", "strides", "device"],
)
def test_wrong_inputs_are_named(stateful: Folder, inputs: Sequence[torch.Tensor], message: str) -> None:
    with Module.load(stateful()) as module:
        with pytest.raises(InputError, match=rf"rows: .*{message}" if "expected 1 inputs" not in message else message):
            module.execute("rows", inputs)
        assert module.execute("rows", [torch.ones(1, 4)])[0].shape == (1, 4)


def test_strides_of_single_elements_do_not_matter(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        x = torch.randn(4, 1).t()
        assert x.stride() == (1, 1)
        assert torch.equal(module.execute("rows", [x])[0], x * WEIGHT + x)


def test_own_output_as_input_is_refused(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        (out,) = module.execute("rows", [torch.ones(4, 4)])
        with pytest.raises(InputError, match="pass a clone"):
            module.execute("rows", [out])
        (other,) = module.execute("step", [torch.ones(4)])
        assert module.execute("rows", [other.view(1, 4)])[0].shape == (1, 4)


def test_outputs_are_views_that_other_methods_leave_alone(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        (out,) = module.execute("step", [torch.ones(4)])
        before = out.clone()
        module.execute("rows", [torch.ones(8, 4)])
        assert torch.equal(out, before)
        module.execute("step", [torch.ones(4)])
        assert not torch.equal(out, before)


def test_inputs_are_not_kept(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        x = torch.ones(4)
        reference = weakref.ref(x)
        module.execute("step", [x])
        del x
        assert reference() is None


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


def test_unknown_method_lists_the_known_ones(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        assert module.method_names == ("step", "rows")
        for call in (module.execute, module.method_meta):
            with pytest.raises(InputError, match="step, rows, got 'prefill'"):
                call("prefill")


def test_all_missing_operators_are_listed(tmp_path: Path) -> None:
    methods = []
    for name in ("f", "g"):
        method = MethodBuilder(name)
        x = method.input("x", "float32", (1,))
        for operator in (f"nowhere::{name}.out", "aten::add.nothing", "aten::neg.out", "aten::nonsense"):
            method.call(operator, x)
        methods.append(method.build([]))
    write_program(tmp_path / "p", methods)
    with pytest.raises(MissingOperatorError) as caught:
        Module.load(tmp_path / "p")
    problems = caught.value.problems
    assert [p.split()[1] for p in problems] == [
        "nowhere::f.out",
        "aten::add.nothing",
        "aten::nonsense",
        "nowhere::g.out",
    ]
    assert "method f, g" in problems[1]


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
    method.instructions.append(t.Free(value=more))
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


def test_missing_device_is_said_before_anything_is_loaded(stateful: Folder) -> None:
    if torch.cuda.device_count() > 7:
        pytest.skip("this machine has a device cuda:7")
    folder = stateful("cuda:7")
    with pytest.raises(DeviceError, match="cuda:7"):
        Module.load(folder)
    with Module.load(folder, device=Device.parse("cpu")) as module:
        assert torch.equal(module.execute("step", [torch.ones(4)])[0], (torch.arange(4.0) + 1) * WEIGHT)


def test_memory_that_the_host_lacks(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    method.planned("huge", "uint8", (2**45,))
    write_program(tmp_path / "p", [method.build([])])
    with pytest.raises(OutOfMemoryError, match=f"cpu: asked for {2**45:,} bytes, free: "):
        Module.load(tmp_path / "p")


def test_closed_means_closed(stateful: Folder) -> None:
    module = Module.load(stateful())
    session = module.new_session()
    (out,) = session.execute("step", [torch.ones(4)])
    expected = out.clone()
    module.close()
    module.close()
    assert torch.equal(out, expected)
    for call in (session.execute, module.execute):
        with pytest.raises(ClosedError):
            call("step", [torch.ones(4)])
    with pytest.raises(ClosedError):
        session.reset()
    with pytest.raises(ClosedError):
        module.new_session()


def test_threads_take_turns(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        failures = []

        def work(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            with module.new_session() as session:
                total = torch.arange(4.0)
                for _ in range(50):
                    x = torch.randn(4, generator=generator)
                    session.execute("step", [x])
                    total += x
                if not torch.equal(session.state["total"], total):
                    failures.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def resident_nbytes() -> int:
    """Return the memory of this process; Linux only, as the promise is tested there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_ten_thousand_executions_leave_memory_flat(stateful: Folder) -> None:
    with Module.load(stateful()) as module:
        x, y = torch.ones(4), torch.ones(3, 4)
        for _ in range(500):
            module.execute("step", [x])
            module.execute("rows", [y])
        gc.collect()
        objects, before = len(gc.get_objects()), resident_nbytes()
        for _ in range(10_000):
            module.execute("step", [x])
            module.execute("rows", [y])
        gc.collect()
        assert resident_nbytes() - before < 2 * 2**20
        assert abs(len(gc.get_objects()) - objects) < 100


def test_a_hundred_loads_leave_memory_flat(tmp_path: Path) -> None:
    method = MethodBuilder("f")
    x = method.input("x", "float32", (1 << 18,))
    weight = method.constant("weight", "float32", (1 << 18,))
    state = method.state("state", "float32", (1 << 18,))
    out = method.planned("out", "float32", (1 << 18,), kind="io")
    method.call("aten::add.out", x, weight, out=out)
    method.call("aten::add_.Tensor", state, out, writes=(state,))
    spec = t.StateSpec(dtype="float32", sizes=(1 << 18,))
    write_program(
        tmp_path / "p", [method.build([out])], constants={"weight": torch.ones(1 << 18)}, state={"state": spec}
    )
    x_1 = torch.ones(1 << 18)
    before = 0
    for i in range(110):
        with Module.load(tmp_path / "p") as module:
            module.execute("f", [x_1])
        if i == 9:
            gc.collect()
            before = resident_nbytes()
    assert resident_nbytes() - before < 4 * 2**20

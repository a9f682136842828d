"""Sessions on the host: state, sizes, inputs, outputs."""

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from device_core import (
    InputError,
    Module,
)
from device_core.runtime.session import LINKED_SIZES
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

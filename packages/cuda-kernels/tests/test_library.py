"""Declarations of operators: names and schemas of the out form, and the checks of its outputs."""

from collections.abc import Iterator

import pytest
import torch
from cuda_kernels import library
from cuda_kernels.registration import OPERATORS


def declare(schema: str) -> library.Operator:
    return library.Operator(schema=schema, reference=lambda *a: None, fake=lambda *a: None)


@pytest.mark.parametrize(
    ("schema", "names", "out_schema"),
    [
        ("f(Tensor x) -> Tensor", ("out",), "f.out(Tensor x, *, Tensor(z!) out) -> ()"),
        (
            "f(Tensor x, int n) -> (Tensor values, Tensor indices)",
            ("values", "indices"),
            "f.out(Tensor x, int n, *, Tensor(z!) values, Tensor(y!) indices) -> ()",
        ),
        (
            "f(Tensor(a!) state, *, float eps) -> Tensor",
            ("out",),
            "f.out(Tensor(a!) state, *, float eps, Tensor(z!) out) -> ()",
        ),
        ("f(Tensor(a!) state) -> ()", (), "f.out(Tensor(a!) state, *, ) -> ()"),
    ],
    ids=["one", "two", "state-and-keyword", "none"],
)
def test_out_form(schema: str, names: tuple[str, ...], out_schema: str) -> None:
    operator = declare(schema)
    assert operator.name == "f"
    assert operator.out_names == names
    if names:
        assert operator.out_schema == out_schema


def test_a_schema_without_result_is_refused() -> None:
    with pytest.raises(ValueError, match=r"operator schema 'f\(Tensor x\)': expected 'name\(arguments\) -> returns'"):
        _ = declare("f(Tensor x)").name


def test_names_are_unique_and_registered() -> None:
    names = [operator.name for operator in OPERATORS]
    assert len(set(names)) == len(names)
    assert all(hasattr(torch.ops.cuda_kernels, name) for name in names)


@pytest.fixture
def twice() -> Iterator[torch._ops.OpOverloadPacket]:
    fragment = torch.library.Library(library.NAMESPACE, "FRAGMENT")
    operator = library.Operator(
        schema="test_twice(Tensor x) -> Tensor", reference=lambda x: 2 * x, fake=torch.empty_like
    )
    library.define(fragment, operator)
    yield torch.ops.cuda_kernels.test_twice
    fragment._destroy()


def test_out_form_fills_the_caller_s_tensor(twice: torch._ops.OpOverloadPacket) -> None:
    out = torch.empty(3)
    assert twice.out(torch.arange(3.0), out=out) is None
    assert out.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("out", "given"),
    [(torch.empty(2), r"torch.float32 \(2,\)"), (torch.empty(3, dtype=torch.int64), r"torch.int64 \(3,\)")],
    ids=["shape", "dtype"],
)
def test_out_form_refuses_another_tensor(twice: torch._ops.OpOverloadPacket, out: torch.Tensor, given: str) -> None:
    with pytest.raises(ValueError, match=rf"test_twice: out: expected torch.float32 \(3,\), got {given}"):
        twice.out(torch.arange(3.0), out=out)

"""Expressions of sizes: values, bounds, solutions, refusals."""

import itertools

import pytest
from device_core.schema.dims import DimError, Interval, bounds, evaluate, solve, symbols_of, upper_bound
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0", 5),
        ("2*s0 + 1", 11),
        ("(s0 + 63)//64", 1),
        ("s0 - s1", -2),
        ("-s0 + 8", 3),
        ("s0 % 3", 2),
        ("Max(s0, s1)", 7),
        ("Min(s0, s1, 2)", 2),
        ("Max(1, 2, 3, 4)", 4),
        (" s0 ", 5),
        ("s0*s1*s0", 175),
    ],
)
def test_value(text: str, value: int) -> None:
    assert evaluate(text, {"s0": 5, "s1": 7}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0 +",
        "s2",
        "s0/2",
        "s0**2",
        "abs(s0)",
        "Max(s0)",
        "Max()",
        "s0.real",
        "s0 if s0 else 1",
        "[1]",
        "'a'",
        "1.5",
        "True",
        "s0 // 0",
        "s0 % (s0 - s0)",
        "9999999999*9999999999",
        "1" * 600,
        "(" * 300 + "1" + ")" * 300,
        "-" * 200 + "1",
        "+".join(["s0"] * 100),
        "__import__(s0, s0)",
        "s0; s1",
        "lambda: 1",
    ],
    ids=lambda text: text[:20],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(DimError):
        evaluate(text, {"s0": 5, "s1": 7})


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("s0", 1, 100),
        ("2*s0 + 1", 3, 201),
        ("(s0 + 63)//64", 1, 2),
        ("s0 - s1", -9, 98),
        ("Max(s0, 5)", 5, 100),
        ("Min(s0, 5)", 1, 5),
        ("s0 % 8", 0, 7),
        ("s1 % 16", 2, 10),
        ("-s0", -100, -1),
    ],
)
def test_bounds(text: str, low: int, high: int) -> None:
    ranges = {"s0": Interval(1, 100), "s1": Interval(2, 10)}
    assert bounds(text, ranges) == Interval(low, high)
    assert upper_bound(text, ranges) == high


def test_possible_division_by_zero_has_no_bounds() -> None:
    with pytest.raises(DimError, match="may divide"):
        bounds("8//s0", {"s0": Interval(0, 4)})


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b"]) | st.integers(0, 20).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 9)).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        st.tuples(st.sampled_from(["Max", "Min"]), inner, inner).map(lambda x: f"{x[0]}({x[1]}, {x[2]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_values_lie_within_bounds_and_are_python_s(text: str) -> None:
    found = bounds(text, {"a": Interval(1, 5), "b": Interval(0, 3)})
    for a, b in itertools.product(range(1, 6), range(4)):
        value = evaluate(text, {"a": a, "b": b})
        assert found.low <= value <= found.high
        assert value == eval(text, {"a": a, "b": b, "Max": max, "Min": min})


@pytest.mark.parametrize(
    ("dim", "value", "expected"),
    [
        ("s0", 7, ("s0", 7)),
        ("2*s0", 8, ("s0", 4)),
        ("2*s0", 7, None),
        ("3*s0 + 2", 14, ("s0", 4)),
        ("10 - s0", 4, ("s0", 6)),
        ("s1*s0 + 1", 13, ("s0", 4)),
    ],
)
def test_solve(dim: str, value: int, expected: tuple[str, int] | None) -> None:
    assert solve(dim, value, {"s1": 3}) == expected


@pytest.mark.parametrize("dim", ["s0*s0", "s0//2", "s0 + s2", "4", "Max(s0, 4)", "s0 - s0", "s0 % 7"])
def test_what_is_not_linear_is_not_solved(dim: str) -> None:
    with pytest.raises(DimError):
        solve(dim, 4, {})


def test_symbols() -> None:
    assert symbols_of("Max(s0, 2*u1) + 3") == {"s0", "u1"}
    assert symbols_of(3) == frozenset()

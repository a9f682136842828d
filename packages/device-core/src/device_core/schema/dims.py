"""Sizes as expressions over symbols: parsed once, evaluated for given symbols, bounded for ranges of them."""

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device_core.schema.types import Dim

MAX_LENGTH = 512
MAX_DEPTH = 32
MAX_NUMBER = 2**62

_CHARACTERS = re.compile(r"[A-Za-z0-9_+\-*/%(), ]*")
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"Max": max, "Min": min}


class DimError(ValueError):
    """An expression that is malformed, uses an unknown symbol, divides by zero or leaves the 63-bit range."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A number, a symbol, or a function of two nodes."""

    number: int = 0
    symbol: str = ""
    function: Callable[[int, int], int] | None = None
    left: "_Node | None" = None
    right: "_Node | None" = None


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int:
    """Return the value of `dim` where each symbol has the given value.

    Raises DimError where the expression is not valid or has no value.
    """
    return dim if isinstance(dim, int) else _value(_parse(dim), symbols, dim)


def bounds(dim: Dim, ranges: Mapping[str, Interval]) -> Interval:
    """Return an interval that holds `dim` for all symbols within `ranges`; tight where each symbol occurs once.

    Raises DimError where the expression is not valid, or may divide by zero or a negative number.
    """
    return Interval(dim, dim) if isinstance(dim, int) else _interval(_parse(dim), ranges, dim)


def upper_bound(dim: Dim, ranges: Mapping[str, Interval]) -> int:
    """Return the high end of `bounds`: what memory is planned with."""
    return bounds(dim, ranges).high


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the symbols that occur in `dim`."""
    return frozenset() if isinstance(dim, int) else _symbols(_parse(dim))


def solve(dim: Dim, value: int, known: Mapping[str, int]) -> tuple[str, int] | None:
    """Find the one symbol of `dim` that `known` lacks, such that `dim` has the given value.

    Returns the symbol and its value, or None where no integer satisfies it.
    Raises DimError where `dim` has not exactly one unknown symbol or is not linear in it.
    """
    unknown = sorted(symbols_of(dim) - known.keys())
    if len(unknown) != 1:
        raise DimError(f"size {dim!r}: expected one unknown symbol, got {', '.join(unknown) or 'none'}")
    symbol = unknown[0]
    at = [evaluate(dim, {**known, symbol: x}) for x in (1, 2, 3, 7)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or at[3] - at[0] != 6 * slope:
        raise DimError(f"size {dim!r}: expected an expression linear in {symbol}")
    solution, rest = divmod(value - at[0], slope)
    if rest or evaluate(dim, {**known, symbol: solution + 1}) != value:
        return None
    return symbol, solution + 1


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> _Node:
    if len(text) > MAX_LENGTH or not _CHARACTERS.fullmatch(text):
        raise DimError(
            f"size {text[:80]!r}: expected names, integers, + - * // % Max Min, up to {MAX_LENGTH} characters"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DimError(f"size {text[:80]!r}: not an expression ({type(error).__name__})") from error
    return _convert(tree.body, text, MAX_DEPTH)


def _convert(node: ast.expr, text: str, depth: int) -> _Node:
    if depth == 0:
        raise DimError(f"size {text[:80]!r}: nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return _Node(number=_checked(number, text))
        case ast.Name(id=symbol):
            return _Node(symbol=symbol)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _Node(function=operator.sub, left=_Node(), right=_convert(operand, text, depth - 1))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            function = _BINARY[type(op)]
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
        case ast.Call(func=ast.Name(id=name), args=[first, *rest], keywords=[]) if name in _FUNCTIONS and rest:
            # Several arguments: Max(a, b, c) is Max(a, Max(b, c)).
            left, right = first, ast.Call(func=ast.Name(id=name), args=rest, keywords=[])
            function = _FUNCTIONS[name]
        case _:
            raise DimError(f"size {text[:80]!r}: {type(node).__name__} is not allowed")
    return _Node(function=function, left=_convert(left, text, depth - 1), right=_convert(right, text, depth - 1))


def _checked(number: int, text: str) -> int:
    if abs(number) > MAX_NUMBER:
        raise DimError(f"size {text[:80]!r}: leaves the range of 63 bits")
    return number


def _value(node: _Node, symbols: Mapping[str, int], text: str) -> int:
    if node.symbol:
        if node.symbol not in symbols:
            raise DimError(f"size {text!r}: unknown symbol {node.symbol}")
        return symbols[node.symbol]
    if node.function is None or node.left is None or node.right is None:
        return node.number
    left, right = _value(node.left, symbols, text), _value(node.right, symbols, text)
    if node.function in (operator.floordiv, operator.mod) and right <= 0:
        raise DimError(f"size {text!r}: divides by {right}")
    return _checked(node.function(left, right), text)


def _interval(node: _Node, ranges: Mapping[str, Interval], text: str) -> Interval:
    if node.symbol:
        if node.symbol not in ranges:
            raise DimError(f"size {text!r}: unknown symbol {node.symbol}")
        return ranges[node.symbol]
    if node.function is None or node.left is None or node.right is None:
        return Interval(node.number, node.number)
    left, right = _interval(node.left, ranges, text), _interval(node.right, ranges, text)
    if node.function in (operator.floordiv, operator.mod) and right.low <= 0:
        raise DimError(f"size {text!r}: may divide by {right.low}")
    if node.function is operator.mod:
        same = left.low >= 0 and left.high < right.low
        return left if same else Interval(0, right.high - 1)
    if node.function is operator.sub:
        corners = [left.low - right.high, left.high - right.low]
    else:
        # The others are monotonic in each argument, so that extremes lie at corners.
        corners = [node.function(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return Interval(_checked(min(corners), text), _checked(max(corners), text))


def _symbols(node: _Node) -> frozenset[str]:
    if node.symbol:
        return frozenset((node.symbol,))
    if node.left is None or node.right is None:
        return frozenset()
    return _symbols(node.left) | _symbols(node.right)

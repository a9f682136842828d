"""Symbolic sizes: the symbols of a method with their ranges, and sympy expressions as `Dim`s of the program format."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sympy
import torch
from device_core.schema.dims import Interval, upper_bound
from device_core.schema.types import Dim, Symbol
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, ModularIndexing, PythonMod
from torch.utils._sympy.functions import Max as TorchMax
from torch.utils._sympy.functions import Min as TorchMin
from torch.utils._sympy.numbers import int_oo

from export_passes.errors import UnsupportedError

Size = int | torch.SymInt


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """The symbols of one method, renamed `s0`, `s1`, … in the order in which its inputs use them."""

    symbols: tuple[Symbol, ...] = ()
    names: Mapping[sympy.Symbol, str] = field(default_factory=dict)

    @classmethod
    def of_inputs(cls, inputs: Mapping[str, Iterable[Size]], ranges: Mapping[sympy.Symbol, object]) -> "SymbolTable":
        """Collect the symbols in the sizes of `inputs` (input name to sizes), bounded by `ranges`.

        Raises UnsupportedError where a symbol has no upper bound: memory is planned for the largest size.
        """
        names: dict[sympy.Symbol, str] = {}
        symbols: list[Symbol] = []
        for name, sizes in inputs.items():
            for size in sizes:
                for symbol in sorted(expression_of(size).free_symbols, key=str):
                    if symbol not in names:
                        names[symbol] = f"s{len(names)}"
                        low, high = _range(symbol, ranges, name)
                        symbols.append(Symbol(name=names[symbol], min=low, max=high))
        return cls(tuple(symbols), names)

    def dim(self, size: Size) -> Dim:
        """Return `size` as a number or as an expression over the method's symbols.

        Raises UnsupportedError where it depends on data (an unbacked symbol) or on anything but the sizes of inputs.
        """
        return size if isinstance(size, int) else _dim(_printed(expression_of(size), self.names))

    def upper(self, dim: Dim) -> int:
        """Return the largest value that `dim` can have."""
        ranges = {symbol.name: Interval(symbol.min, symbol.max) for symbol in self.symbols}
        return upper_bound(dim, ranges)

    def scaled(self, size: Size, factor: int) -> Dim:
        """Return `size * factor` as a `Dim`."""
        return size * factor if isinstance(size, int) else _dim(_printed(expression_of(size) * factor, self.names))


def expression_of(size: Size) -> sympy.Expr:
    """Return the sympy expression of a size."""
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def _dim(text: str) -> Dim:
    return int(text) if text.lstrip("-").isdecimal() else text


def _range(symbol: sympy.Symbol, ranges: Mapping[sympy.Symbol, object], where: str) -> tuple[int, int]:
    bounds = ranges.get(symbol)
    upper = getattr(bounds, "upper", int_oo)
    if upper in (int_oo, sympy.oo) or int(upper) >= 2**62:
        raise UnsupportedError(
            f"input {where!r}: symbol {symbol} has no upper bound; memory is planned for the largest size, "
            "so give one: torch.export.Dim(..., max=...)"
        )
    return max(int(getattr(bounds, "lower", 0)), 0), int(upper)


def _printed(expression: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
    """Print `expression` with `+ - * // % Max Min`, fully parenthesized below the top."""

    def inner(e: sympy.Expr) -> str:
        text = _printed(e, names)
        return text if e.is_Symbol or (e.is_Integer and e >= 0) or text.startswith(("Max(", "Min(")) else f"({text})"

    arguments = expression.args
    match expression:
        case sympy.Integer():
            return str(int(expression))
        case sympy.Symbol():
            return _symbol(expression, names)
        case sympy.Add():
            return _sum(sorted(arguments, key=lambda e: (e.is_number, str(e))), inner)
        case sympy.Mul() if all(a.is_integer for a in arguments):
            return "*".join(inner(a) for a in sorted(arguments, key=lambda e: (not e.is_number, str(e))))
        case sympy.Pow() if arguments[1].is_Integer and 0 < arguments[1] <= 8:
            return "*".join([inner(arguments[0])] * int(arguments[1]))
        case FloorDiv() | CleanDiv():
            return f"{inner(arguments[0])}//{inner(arguments[1])}"
        case Mod() | PythonMod():
            return f"{inner(arguments[0])}%{inner(arguments[1])}"
        case ModularIndexing():
            return f"({inner(arguments[0])}//{inner(arguments[1])})%{inner(arguments[2])}"
        case sympy.Max() | TorchMax():
            return f"Max({', '.join(_printed(a, names) for a in arguments)})"
        case sympy.Min() | TorchMin():
            return f"Min({', '.join(_printed(a, names) for a in arguments)})"
    raise UnsupportedError(f"size {expression}: {type(expression).__name__} cannot be written with + - * // % Max Min")


def _sum(terms: list[sympy.Expr], inner: object) -> str:
    assert callable(inner)
    text = inner(terms[0])
    for term in terms[1:]:
        coefficient, rest = term.as_coeff_Mul()
        if coefficient.is_Integer and coefficient < 0:
            text += f" - {inner(-coefficient * rest)}"
        else:
            text += f" + {inner(term)}"
    return text


def _symbol(symbol: sympy.Symbol, names: Mapping[sympy.Symbol, str]) -> str:
    if symbol in names:
        return names[symbol]
    if str(symbol).lstrip("z").startswith("u"):
        raise UnsupportedError(f"size {symbol} depends on data (an unbacked symbol); sizes must follow from the inputs")
    raise UnsupportedError(f"size {symbol} is not the size of an input")

"""Which sizes of the inputs tell the symbols of a method."""

from collections.abc import Iterator
from dataclasses import dataclass

from device_core.schema import types as t
from device_core.schema.dims import DimError, solve, symbols_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolSource:
    """Where one symbol is read from.

    position: which input. axis: of its sizes, or None where the input is the number itself. dim: the expression there.
    """

    position: int
    axis: int | None
    symbol: str
    dim: str


def symbol_sources(method: t.Method) -> list[SymbolSource]:
    """Return a source for each symbol that an input tells, in an order in which each is linear in one new symbol."""
    candidates: list[tuple[int, int | None, str]] = []
    for position, index in enumerate(method.inputs):
        value = method.values[index]
        if isinstance(value, t.SymIntValue):
            candidates.append((position, None, str(value.expression)))
        elif isinstance(value, t.TensorValue):
            candidates += [(position, axis, dim) for axis, dim in enumerate(value.sizes) if isinstance(dim, str)]
    # A size that is one symbol tells it whatever the others are.
    candidates.sort(key=lambda candidate: not candidate[2].isidentifier())
    known: dict[str, int] = {}
    sources = []
    for position, axis, dim in candidates:
        unknown = symbols_of(dim) - known.keys()
        if len(unknown) == 1 and _linear(dim, known):
            (symbol,) = unknown
            sources.append(SymbolSource(position=position, axis=axis, symbol=symbol, dim=dim))
            known[symbol] = 1
    return sources


def symbol_problems(method: t.Method) -> Iterator[str]:
    """Yield the symbols that no input tells."""
    told = {source.symbol for source in symbol_sources(method)}
    for symbol in method.symbols:
        if symbol.name not in told:
            yield f"symbol {symbol.name} does not follow from the inputs: none has a size linear in it"


def _linear(dim: str, known: dict[str, int]) -> bool:
    try:
        solve(dim, 1, known)
    except DimError:
        return False
    return True

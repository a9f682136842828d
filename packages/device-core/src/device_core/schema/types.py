"""The program format: frozen msgspec structs, written as JSON; unknown fields are refused.

Values, buffers, operators, delegates and instructions refer to each other by index from 0 within their method.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

SCHEMA_VERSION = 2

Dim = Annotated[int, Meta(ge=-(2**62), le=2**62)] | Annotated[str, Meta(max_length=512)]
"""A number, or an expression over the method's symbols: `"s0"`, `"2*s0 + 1"`, `"(s0 + 63)//64"`, `"Max(s0, 1)"`."""

Index = Annotated[int, Meta(ge=0, le=2**31)]
Nbytes = Annotated[int, Meta(ge=0, le=2**62)]
BufferKind = Literal["io", "scratch"]


class _Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all records."""


class Planned(_Record, frozen=True, kw_only=True, tag="planned"):
    """Bytes in a planned buffer of the method."""

    buffer: Index
    offset_bytes: Dim = 0


class Constant(_Record, frozen=True, kw_only=True, tag="constant"):
    """Bytes of a constant of the program, on the value's device."""

    name: str
    offset_bytes: Dim = 0


class State(_Record, frozen=True, kw_only=True, tag="state"):
    """Bytes of a state of the session."""

    name: str
    offset_bytes: Dim = 0


class Bound(_Record, frozen=True, kw_only=True, tag="bound"):
    """Bytes of a tensor that the caller passes; `value` is the index of that input or caller-supplied output.

    A value whose storage is `Bound` to itself is such an input or output; others are views of it.
    """

    value: Index
    offset_bytes: Dim = 0


Storage = Planned | Constant | State | Bound


class TensorValue(_Record, frozen=True, kw_only=True, tag="tensor"):
    """A tensor over storage. A view is a value of its own over the storage of its base.

    name: the node of the exported graph it comes from.
    strides: in elements.
    """

    name: str
    dtype: str
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    storage: Storage
    device: str = "cpu"


class SymIntValue(_Record, frozen=True, kw_only=True, tag="symint"):
    """An integer that follows from the sizes of the inputs. As an input its expression is one symbol."""

    name: str
    expression: Dim


class ScalarValue(_Record, frozen=True, kw_only=True, tag="scalar"):
    """A finite number, flag, string or None that was fixed at export. As an input it must be passed equal."""

    name: str
    value: bool | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | str | None


class NonFiniteValue(_Record, frozen=True, kw_only=True, tag="nonfinite"):
    """A float that JSON cannot write as a number, fixed at export. As an input it must be passed equal."""

    name: str
    value: Literal["inf", "-inf", "nan"]


class DtypeValue(_Record, frozen=True, kw_only=True, tag="dtype"):
    """A dtype argument, such as `float32`."""

    name: str
    dtype: str


class ListValue(_Record, frozen=True, kw_only=True, tag="list"):
    """A list argument; `items` are values of the method."""

    name: str
    items: tuple[Index, ...]


Value = TensorValue | SymIntValue | ScalarValue | NonFiniteValue | DtypeValue | ListValue


class KernelCall(_Record, frozen=True, kw_only=True, tag="kernel"):
    """Call an operator, whose results are ignored: all it computes lies in tensors among its arguments.

    operator: index into the method's operators.
    outputs: the values that it writes: its out arguments and the state it mutates.
    """

    operator: Index
    args: tuple[Index, ...] = ()
    kwargs: dict[str, Index] = {}
    outputs: tuple[Index, ...] = ()


class DelegateCall(_Record, frozen=True, kw_only=True, tag="delegate"):
    """Run an opaque region: its backend reads `args` and fills `outputs`."""

    delegate: Index
    args: tuple[Index, ...]
    outputs: tuple[Index, ...]


class Move(_Record, frozen=True, kw_only=True, tag="move"):
    """Copy the elements of `source` to `target`, of the same dtype, sizes and device."""

    source: Index
    target: Index


class JumpFalse(_Record, frozen=True, kw_only=True, tag="jump_false"):
    """Go to instruction `target` unless `condition` holds: a flag, or a bool tensor on the host, all true."""

    condition: Index
    target: Index


Instruction = KernelCall | DelegateCall | Move | JumpFalse


class Symbol(_Record, frozen=True, kw_only=True):
    """A size that is known when the method is called; both bounds are possible values."""

    name: str
    min: Annotated[int, Meta(ge=0, le=2**31)]
    max: Annotated[int, Meta(ge=0, le=2**31)]


class PlannedBuffer(_Record, frozen=True, kw_only=True):
    """Memory of a method. `io` survives the other methods of the module, `scratch` is shared with them."""

    nbytes: Nbytes
    device: str = "cpu"
    kind: BufferKind = "scratch"


class Delegate(_Record, frozen=True, kw_only=True):
    """An opaque region: `key` names its payload in the folder `delegates/`, `region` its place in the graph."""

    backend: str
    key: str
    region: str
    device: str = "cpu"


class Method(_Record, frozen=True, kw_only=True):
    """One entry point of the program."""

    name: str
    symbols: tuple[Symbol, ...] = ()
    values: tuple[Value, ...]
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    buffers: tuple[PlannedBuffer, ...] = ()
    operators: tuple[str, ...] = ()
    delegates: tuple[Delegate, ...] = ()
    instructions: tuple[Instruction, ...]


class ConstantSpec(_Record, frozen=True, kw_only=True):
    """A constant, contiguous; `shard` is the file that holds it (filled in by `ProgramWriter`)."""

    dtype: str
    sizes: tuple[Nbytes, ...]
    shard: str = ""


class StateSpec(_Record, frozen=True, kw_only=True):
    """Memory that a session keeps between calls; it starts as the constant `initial`, or as zeros."""

    dtype: str
    sizes: tuple[Nbytes, ...]
    device: str = "cpu"
    initial: str | None = None


class FileSpec(_Record, frozen=True, kw_only=True):
    """A file that belongs to the program folder, other than `program.json` itself."""

    nbytes: Nbytes
    sha256: str | None = None


class Program(_Record, frozen=True, kw_only=True, omit_defaults=False):
    """Methods over shared constants and state.

    files: shards and delegate payloads by path within the folder (filled in by `ProgramWriter`).
    checksum: SHA-256 of the program encoded without it (filled in by `ProgramWriter`); None: not checked.
    """

    schema_version: Nbytes = SCHEMA_VERSION
    producer: str
    constants: dict[str, ConstantSpec] = {}
    state: dict[str, StateSpec] = {}
    methods: tuple[Method, ...]
    metadata: dict[str, str | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]] = {}
    files: dict[str, FileSpec] = {}
    checksum: str | None = None

"""What must hold of a program and of its folder; everything that does not is reported at once."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from device_core.schema import shards
from device_core.schema.dtypes import DTYPES, itemsize
from device_core.schema.types import ConstantSpec, Program, StateSpec
from device_core.schema.validate_method import device_problems, method_problems

MAX_NBYTES = 2**50


def problems_of(program: Program) -> list[str]:
    """Return what is wrong with `program` itself; without files beside it."""
    problems = list(_declarations(program))
    if problems:
        # Methods are judged against declarations that hold.
        return problems
    for method in program.methods:
        problems += [f"method {method.name!r}: {text}" for text in method_problems(method, program)]
    return problems


def check_files(folder: Path, program: Program) -> list[str]:
    """Return what is wrong with the files beside a valid program: missing, cut short, or not holding its constants."""
    problems, whole = list(_unlisted(program)), set()
    for name, spec in program.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"file {name} is missing; was the folder copied completely?")
        elif (size := path.stat().st_size) != spec.nbytes:
            problems.append(f"file {name}: expected {spec.nbytes:,} bytes, found {size:,}; was it cut short?")
        else:
            whole.add(name)
    by_shard: dict[str, dict[str, ConstantSpec]] = {}
    for name, constant in program.constants.items():
        by_shard.setdefault(constant.shard, {})[name] = constant
    for shard, constants in by_shard.items():
        if shard in whole:
            problems += [f"file {shard}: {text}" for text in _shard_problems(folder / shard, constants)]
    return problems


def _unlisted(program: Program) -> Iterator[str]:
    for name, constant in program.constants.items():
        if constant.shard not in program.files:
            yield f"constant {name!r}: its shard {constant.shard!r} is not among the files"
    for method in program.methods:
        for delegate in method.delegates:
            if f"delegates/{delegate.key}" not in program.files:
                yield f"method {method.name!r}: the payload {delegate.key!r} of a delegate is not among the files"


def _declarations(program: Program) -> Iterator[str]:
    for name, count in Counter(method.name for method in program.methods).items():
        if count > 1:
            yield f"method {name!r} is there {count} times"
    for path in program.files:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or path == "program.json":
            yield f"file {path!r}: expected a path within the folder"
    for name, constant in program.constants.items():
        yield from _spec_problems(f"constant {name!r}", constant)
    for name, state in program.state.items():
        yield from _spec_problems(f"state {name!r}", state)
        yield from device_problems(f"state {name!r}", state.device)
        if state.initial is not None:
            initial = program.constants.get(state.initial)
            if initial is None:
                yield f"state {name!r}: starts as constant {state.initial!r}, which is not there"
            elif (initial.dtype, initial.sizes) != (state.dtype, state.sizes):
                yield (
                    f"state {name!r}: expected an initial constant {state.dtype} {state.sizes}, "
                    f"got {initial.dtype} {initial.sizes}"
                )


def _spec_problems(where: str, spec: ConstantSpec | StateSpec) -> Iterator[str]:
    if spec.dtype not in DTYPES:
        yield f"{where}: unknown dtype {spec.dtype!r}"
    elif len(spec.sizes) > 64 or math.prod(max(n, 1) for n in spec.sizes) * itemsize(spec.dtype) > MAX_NBYTES:
        yield f"{where}: sizes {spec.sizes} are too large"


def _shard_problems(path: Path, constants: dict[str, ConstantSpec]) -> Iterator[str]:
    try:
        reader = shards.ShardReader(path)
    except (ValueError, OSError) as error:
        yield str(error)
        return
    with reader:
        for name, constant in constants.items():
            if name not in reader.names:
                yield f"constant {name!r} is missing"
                continue
            wanted, found = (shards.code(constant.dtype), constant.sizes), reader.spec(name)
            if found != wanted:
                yield f"constant {name!r}: expected {wanted[0]} {wanted[1]}, found {found[0]} {found[1]}"

"""Compile every shipped kernel configuration without a GPU and print registers, spills and shared memory.

    python -m cuda_kernels.report [--target sm_90,sm_80,sm_120] [--only SUBSTRING]

Exits 1 on a spill, on more shared memory than the target has, or on a kernel that does not compile.
Needs a process of its own: Triton's interpreter must be off.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Shared memory that one block may have, in bytes, by compute capability.
SHARED_LIMITS = {80: 166_912, 90: 232_448, 120: 101_376}

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One shipped configuration of one kernel.

    name: family, kernel and what sets this configuration apart, as `linear.matvec_int8/K2048`.
    kernel: the `@triton.jit` function.
    signature: type of each argument that is no constexpr: "*bf16", "*fp32", "*i8", "*i32", "*u8", "i32", "fp32".
    constexprs: value of each constexpr argument; a pointer argument given None is passed here too.
    aligned: arguments that are multiples of 16 whenever the operator launches the kernel (pointers count in bytes).
        None: all pointers.
    targets: compute capabilities that the configuration ships for.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    aligned: Sequence[str] | None = None
    targets: Sequence[int] = (80, 90, 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one compiled kernel uses; bytes but for the registers a thread."""

    registers: int
    spills_nbytes: int
    shared_nbytes: int

    def problem(self, capability: int) -> str | None:
        """Return why the kernel may not ship on `capability`, or None."""
        if self.spills_nbytes:
            return f"spills {self.spills_nbytes} bytes"
        limit = SHARED_LIMITS[capability]
        return f"shared memory over {limit}" if self.shared_nbytes > limit else None


def compile_case(case: KernelCase, capability: int) -> Usage:
    """Compile `case` for `capability` and return its usage. Raises what Triton raises where it does not compile."""
    names = list(case.kernel.arg_names)
    missing = [name for name in names if name not in case.signature and name not in case.constexprs]
    unknown = [name for name in (*case.signature, *case.constexprs) if name not in names]
    if missing or unknown:
        raise ValueError(f"{case.name}: arguments missing: {missing}, unknown: {unknown}")
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = [n for n, t in signature.items() if t.startswith("*")] if case.aligned is None else case.aligned
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constexprs), attrs=attributes)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    # Triton runs the assembler silently; the spills are in what it prints.
    log = _assemble(compiled.asm["ptx"], capability)
    spills = sum(int(n) for pair in _SPILLS.findall(log) for n in pair)
    registers = max(int(n) for n in _REGISTERS.findall(log))
    return Usage(registers=registers, spills_nbytes=spills, shared_nbytes=compiled.metadata.shared)


def _assemble(ptx: str, capability: int) -> str:
    # From compute capability 9 on, the "a" variant has the tensor-core instructions that Triton emits.
    architecture = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
    knobs = triton.knobs.nvidia
    assembler = knobs.ptxas_blackwell if capability >= 100 else knobs.ptxas
    with tempfile.NamedTemporaryFile(suffix=".ptx", mode="w") as file:
        file.write(ptx)
        file.flush()
        command = [assembler.path, "-v", f"--gpu-name={architecture}", file.name, "-o", "/dev/null"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def all_cases() -> Iterator[KernelCase]:
    """Yield the cases of every family."""
    from cuda_kernels.registration import FAMILIES  # imported here: the families import this module

    for family in FAMILIES:
        yield from family.COMPILE_CASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels.report", description=__doc__)
    parser.add_argument("--target", default="sm_90,sm_80,sm_120", help="comma-separated, of sm_80, sm_90, sm_120")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set; kernels are compiled, not interpreted")
    capabilities = [int(name.strip().removeprefix("sm_")) for name in options.target.split(",")]
    if unknown := [c for c in capabilities if c not in SHARED_LIMITS]:
        parser.error(f"--target: expected of {sorted(SHARED_LIMITS)}, got {unknown}")
    print(f"{'kernel':<60} {'target':>7} {'regs':>5} {'spills':>7} {'shared':>8}")
    failures = 0
    for case in all_cases():
        if options.only not in case.name:
            continue
        for capability in capabilities:
            if capability in case.targets:
                failures += not _report(case, capability)
    print(f"{failures} failed" if failures else "all pass")
    return 1 if failures else 0


def _report(case: KernelCase, capability: int) -> bool:
    head = f"{case.name:<60} {f'sm_{capability}':>7}"
    try:
        usage = compile_case(case, capability)
    except Exception as error:  # any compiler error is a line of the report, and makes it fail
        print(f"{head} does not compile: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}", flush=True)
        return False
    problem = usage.problem(capability)
    print(
        f"{head} {usage.registers:>5} {usage.spills_nbytes:>7} {usage.shared_nbytes:>8}"
        + (f"  {problem}" if problem else ""),
        flush=True,
    )
    return problem is None


if __name__ == "__main__":
    sys.exit(main())

"""Compile every shipped kernel configuration without a GPU and print registers, spills and shared memory.

    python -m cuda_kernels.report [--target sm_90,sm_80,sm_120] [--only SUBSTRING]

Exits 1 on a spill, on more shared memory than the target has, or on a kernel that does not compile.
Needs a process of its own: Triton's interpreter must be off.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import triton

from cuda_kernels.registration import FAMILIES
from cuda_kernels.report.case import KernelCase
from cuda_kernels.report.compiler import SHARED_LIMITS, compile_case


def all_cases() -> Iterator[KernelCase]:
    """Yield the cases of every family."""
    for family in FAMILIES:
        yield from family.COMPILE_CASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels.report", description=__doc__)
    parser.add_argument("--target", default="sm_90,sm_80,sm_120", help="comma-separated, of sm_80, sm_90, sm_120")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args(arguments)
    capabilities = [int(name.strip().removeprefix("sm_")) for name in options.target.split(",")]
    if unknown := [c for c in capabilities if c not in SHARED_LIMITS]:
        parser.error(f"--target: expected of {sorted(SHARED_LIMITS)}, got {unknown}")
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set; kernels are compiled, not interpreted")
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

"""The table of the compile report: every case of every family, compiled by as many processes as there are cores."""

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import triton

from cuda_kernels.registration import FAMILIES
from cuda_kernels.report.case import KernelCase
from cuda_kernels.report.compiler import SHARED_LIMITS, compile_case

_DESCRIPTION = "Compile every shipped kernel configuration without a GPU; exit 1 where one may not ship."


def all_cases() -> list[KernelCase]:
    """Return the cases of every family."""
    return [case for family in FAMILIES for case in family.COMPILE_CASES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cuda_kernels.report", description=_DESCRIPTION)
    parser.add_argument("--target", default="sm_90,sm_80,sm_120", help="comma-separated, of sm_80, sm_90, sm_120")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args(arguments)
    capabilities = [int(name.strip().removeprefix("sm_")) for name in options.target.split(",")]
    if unknown := [c for c in capabilities if c not in SHARED_LIMITS]:
        parser.error(f"--target: expected of {sorted(SHARED_LIMITS)}, got {unknown}")
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set; kernels are compiled, not interpreted")
    chosen = [
        (index, capability)
        for index, case in enumerate(all_cases())
        if options.only in case.name
        for capability in capabilities
        if capability in case.targets
    ]
    print(f"{'kernel':<60} {'target':>7} {'regs':>5} {'spills':>7} {'shared':>8}")
    failures = 0
    # Kernels do not pickle, so a worker gets the place of its case in the list, which it builds anew.
    workers = max(1, min(os.cpu_count() or 1, len(chosen)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for line, passes in pool.map(report_line, *zip(*chosen, strict=True)) if chosen else ():
            print(line, flush=True)
            failures += not passes
    print(f"{failures} failed" if failures else "all pass")
    return 1 if failures else 0


def report_line(index: int, capability: int) -> tuple[str, bool]:
    """Compile case `index` for `capability`; return its line of the table and whether it may ship."""
    case = all_cases()[index]
    head = f"{case.name:<60} {f'sm_{capability}':>7}"
    try:
        usage = compile_case(case, capability)
    except Exception as error:  # any compiler error is a line of the report, and makes it fail
        return f"{head} does not compile: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}", False
    problem = usage.problem(capability)
    numbers = f"{usage.registers:>5} {usage.spills_nbytes:>7} {usage.shared_nbytes:>8}"
    return f"{head} {numbers}" + (f"  {problem}" if problem else ""), problem is None

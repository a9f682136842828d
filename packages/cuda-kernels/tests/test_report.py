"""The compile report: its verdicts, its checks of a case, and a run in a process of its own."""

import os
import subprocess
import sys

import pytest
import triton
import triton.language as tl
from cuda_kernels.registration import FAMILIES
from cuda_kernels.report import KernelCase
from cuda_kernels.report.compiler import Usage, compile_case
from cuda_kernels.report.table import main


@triton.jit
def _copy_kernel(p_x, p_y, N: tl.constexpr):
    tl.store(p_y + tl.arange(0, N), tl.load(p_x + tl.arange(0, N)))


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "cuda_kernels.report", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("usage", "capability", "problem"),
    [
        (Usage(registers=255, spills_nbytes=0, shared_nbytes=232_448), 90, None),
        (Usage(registers=255, spills_nbytes=8, shared_nbytes=0), 90, "spills 8 bytes"),
        (Usage(registers=32, spills_nbytes=0, shared_nbytes=101_377), 120, "shared memory over 101376"),
        (Usage(registers=32, spills_nbytes=0, shared_nbytes=166_913), 80, "shared memory over 166912"),
    ],
    ids=["fits", "spill", "shared-sm_120", "shared-sm_80"],
)
def test_verdict(usage: Usage, capability: int, problem: str | None) -> None:
    assert usage.problem(capability) == problem


def test_a_case_must_name_every_argument() -> None:
    case = KernelCase(name="copy", kernel=_copy_kernel, signature={"p_x": "*fp32"}, constexprs={"M": 16})
    with pytest.raises(ValueError, match=r"copy: arguments missing: \['p_y', 'N'\], unknown: \['M'\]"):
        compile_case(case, 90)


def test_names_of_cases_are_unique() -> None:
    names = [(case.name, target) for family in FAMILIES for case in family.COMPILE_CASES for target in case.targets]
    assert len(set(names)) == len(names)


def test_run_compiles_and_prints_usage() -> None:
    result = report("--target", "sm_90", "--only", "norm.rms_norm/")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].split()[:2] == ["norm.rms_norm/D2048", "sm_90"]
    assert lines[-1] == "all pass"


def test_run_refuses_an_unknown_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--target", "sm_75"])
    assert "expected of [80, 90, 120], got [75]" in capsys.readouterr().err

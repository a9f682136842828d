"""Compile one case for one target and say what it uses: registers, spills, shared memory."""

import re
import subprocess
import tempfile
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cuda_kernels.report.case import KernelCase

# Shared memory that one block may have, in bytes, by compute capability.
SHARED_LIMITS = {80: 166_912, 90: 232_448, 120: 101_376}

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


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
    constexprs = dict(case.constexprs)
    if "PDL" in names:
        constexprs.setdefault("PDL", capability >= 90)
    missing = [name for name in names if name not in case.signature and name not in constexprs]
    unknown = [name for name in (*case.signature, *constexprs) if name not in names]
    if missing or unknown:
        raise ValueError(f"{case.name}: arguments missing: {missing}, unknown: {unknown}")
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = [n for n, t in signature.items() if t.startswith("*")] if case.aligned is None else case.aligned
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, "maxnreg": case.registers}
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

"""Compile every shipped kernel configuration without a GPU and print registers, spills and shared memory.

    python -m cuda_kernels.report [--target sm_90,sm_80,sm_120] [--only SUBSTRING]

Exits 1 on a spill, on more shared memory than the target has, or on a kernel that does not compile.
Needs a process of its own: Triton's interpreter must be off.
"""

import sys

from cuda_kernels.report.table import main

sys.exit(main())

"""The breakdown of a decode step: overlapping kernels add up to the time that passed."""

from pathlib import Path

import pytest
from qwen35_moe.engine import Engine
from qwen35_moe.errors import EngineError
from qwen35_moe.profiling import Kernel, profile_decode, shares_of


def test_overlapping_kernels_add_up_to_the_time_that_passed() -> None:
    kernels = [
        Kernel(name="rms_norm_int8_kernel", start=0.0, end=2.0),
        Kernel(name="matvec_int8_kernel", start=1.0, end=5.0),
        Kernel(name="gated_delta_net_decode_kernel", start=1.5, end=6.0),
        Kernel(name="matvec_int8_kernel", start=6.5, end=8.0),
        Kernel(name="Memcpy DtoH (Device -> Pinned)", start=8.0, end=9.0),
        Kernel(name="vectorized_elementwise_kernel", start=9.0, end=10.0),
    ]
    shares = {share.operator: share for share in shares_of(kernels, 2, {"int4_linear": 1.25})}
    assert {name: share.seconds for name, share in shares.items()} == {
        "rms_norm": 1.0,
        "int4_linear": 2.5,
        "gated_delta_net_decode": 0.5,
        "copies": 0.5,
        "other": 0.5,
    }
    assert shares["int4_linear"].floor_s == 1.25
    assert shares["int4_linear"].kernels == (("matvec_int8_kernel", 1.0, 2.5),)
    assert sum(share.share for share in shares.values()) == pytest.approx(1.0)


def test_program_on_the_host_is_refused(small_program: Path) -> None:
    with Engine.load(small_program) as engine, pytest.raises(EngineError, match="runs on the host"):
        profile_decode(engine, context=4)

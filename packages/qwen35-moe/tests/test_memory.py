"""The memory plan: its sums, and refusal of what does not fit."""

from pathlib import Path

import pytest
from device_core import HOST, Device, DeviceType, Module, read_program
from qwen35_moe.errors import MemoryPlanError
from qwen35_moe.memory import check_memory, nbytes_free, plan_memory

CUDA = Device(DeviceType.CUDA)


def test_sums_are_those_of_the_loaded_module(small_program: Path) -> None:
    plan = plan_memory(read_program(small_program), HOST)
    with Module.load(small_program) as module:
        assert plan.weights == sum(tensor.nbytes for tensor in module.constants.values())
        assert plan.state == sum(tensor.nbytes for tensor in module.default_session.state.values())
        assert 0 < plan.scratch + plan.io <= module.planned_nbytes
    assert plan.total == plan.weights + plan.state + plan.scratch + plan.io
    assert f"weights {plan.weights / 1024**2:.2f} MiB" in str(plan)


def test_another_device_holds_nothing(small_program: Path) -> None:
    assert plan_memory(read_program(small_program), CUDA).total == 0


def test_program_that_does_not_fit_is_refused_with_the_numbers(small_program: Path) -> None:
    plan = plan_memory(read_program(small_program), HOST, nbytes_free=256 * 1024**2)
    with pytest.raises(MemoryPlanError, match=r"needs 0\.50 GiB .* 0\.25 GiB are free; memory on cpu: weights"):
        check_memory(plan)


@pytest.mark.parametrize("free", [None, 2**40], ids=["unknown", "enough"])
def test_program_that_fits_is_accepted(small_program: Path, free: int | None) -> None:
    check_memory(plan_memory(read_program(small_program), HOST, nbytes_free=free))


def test_host_does_not_say_what_is_free() -> None:
    assert nbytes_free(HOST) is None

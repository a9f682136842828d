"""Comparison on a host and two recording fake devices, on which every wrong use of memory is an error."""

from pathlib import Path

from device_core.schema import types as t
from device_core.testing import RecordingDevice

from export_passes.testing.comparison import compare
from export_passes.testing.random_graphs import RandomProgram


def compare_on_fakes(program: RandomProgram, folder: Path) -> t.Program:
    """`compare` with two fake devices in the place of CUDA, whose new memory is poisoned.

    Raises what `compare` raises, and MemoryAccessError where a device's memory is used wrongly or leaks.
    """
    with RecordingDevice(2):
        return compare(program, folder)

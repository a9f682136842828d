"""What tests of devices and programs need: a recording fake device, and a builder of programs."""

from device_core.testing.device_tensor import DeviceTensor
from device_core.testing.programs import MethodBuilder, write_program
from device_core.testing.recording_device import POISON, OperatorRun, RecordingDevice, Transfer

__all__ = ["POISON", "DeviceTensor", "MethodBuilder", "OperatorRun", "RecordingDevice", "Transfer", "write_program"]

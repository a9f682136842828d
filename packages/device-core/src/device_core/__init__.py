"""Devices, allocators, the program format and the runtime that executes device-aware programs."""

from device_core.allocator import DeviceAllocator, DeviceAllocatorRegistry, allocators
from device_core.buffer import DeviceMemoryBuffer
from device_core.device import HOST, Device, DeviceType
from device_core.errors import (
    CaptureError,
    ClosedError,
    DeviceCoreError,
    DeviceError,
    InputError,
    MemoryAccessError,
    MissingOperatorError,
    OutOfMemoryError,
    ProgramError,
    RegistrationError,
)
from device_core.memory_manager import MemoryManager
from device_core.runtime.backends import BACKENDS, Backend, BackendRegistry, Region
from device_core.runtime.graph import CaptureCache, CapturedFunction, CapturedMethod
from device_core.runtime.meta import MethodMeta
from device_core.runtime.module import Module
from device_core.runtime.session import Session
from device_core.schema.codec import ProgramWriter, read_program
from device_core.tensors import clone_to

__all__ = [
    "BACKENDS",
    "HOST",
    "Backend",
    "BackendRegistry",
    "CaptureCache",
    "CaptureError",
    "CapturedFunction",
    "CapturedMethod",
    "ClosedError",
    "Device",
    "DeviceAllocator",
    "DeviceAllocatorRegistry",
    "DeviceCoreError",
    "DeviceError",
    "DeviceMemoryBuffer",
    "DeviceType",
    "InputError",
    "MemoryAccessError",
    "MemoryManager",
    "MethodMeta",
    "MissingOperatorError",
    "Module",
    "OutOfMemoryError",
    "ProgramError",
    "ProgramWriter",
    "Region",
    "RegistrationError",
    "Session",
    "allocators",
    "clone_to",
    "read_program",
]

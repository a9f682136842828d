"""Devices: a type and an index, written `cpu`, `cuda:0`."""

import enum
from dataclasses import dataclass
from typing import Self

import torch

from device_core.errors import DeviceError

MAX_INDEX = 127


class DeviceType(enum.IntEnum):
    """Kinds of devices, in the order in which plans list them."""

    CPU = 0
    CUDA = 1


_TYPES = {kind.name.lower(): kind for kind in DeviceType}


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """One device. Devices order by type and then index; the host is `Device(DeviceType.CPU)`."""

    type: DeviceType
    index: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.type, DeviceType):
            raise DeviceError(f"device type: expected a DeviceType, got {self.type!r}")
        if not isinstance(self.index, int) or isinstance(self.index, bool):
            raise DeviceError(f"device index: expected an int, got {self.index!r}")
        top = 0 if self.type is DeviceType.CPU else MAX_INDEX
        if not 0 <= self.index <= top:
            raise DeviceError(f"device index of {self.type.name.lower()}: expected 0 to {top}, got {self.index}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"<type>[:<index>]"`; case and surrounding blanks do not matter, the index defaults to 0.

        Raises DeviceError where the type is unknown or the index is not a number in range.
        """
        name, colon, index = text.strip().lower().partition(":")
        if name not in _TYPES:
            raise DeviceError(f"device {text!r}: expected one of {', '.join(_TYPES)}, optionally with :index")
        if colon and not (index.isascii() and index.isdecimal() and len(index) <= 3):
            raise DeviceError(
                f"device {text!r}: expected an index from 0 to {MAX_INDEX} after the colon, got {index!r}"
            )
        return cls(_TYPES[name], int(index) if colon else 0)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Return the device of `tensor`.

        Raises DeviceError where the tensor lives on a kind of device that this package does not know.
        """
        return cls.parse(str(tensor.device))

    @property
    def is_host(self) -> bool:
        """Return whether this is the host."""
        return self.type is DeviceType.CPU

    @property
    def torch(self) -> torch.device:
        """Return torch's name of the device."""
        return torch.device(str(self))

    def __str__(self) -> str:
        return "cpu" if self.is_host else f"{self.type.name.lower()}:{self.index}"


HOST = Device(DeviceType.CPU)

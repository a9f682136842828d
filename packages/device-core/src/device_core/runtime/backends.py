"""Backends that run opaque regions: their interface, and the registry that finds them by name."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from device_core.device import Device
from device_core.errors import MissingOperatorError, RegistrationError
from device_core.schema import types as t

Argument = torch.Tensor | int | float | bool | str | None


class Region(ABC):
    """A loaded region."""

    @property
    def capturable(self) -> bool:
        """Return whether `execute` may be recorded into a CUDA graph: it neither waits nor touches the host."""
        return False

    @abstractmethod
    def execute(self, inputs: Sequence[Argument], outputs: Sequence[torch.Tensor]) -> None:
        """Fill `outputs` from `inputs`; both are on the region's device, on whose current stream the work goes."""

    @abstractmethod
    def close(self) -> None:
        """Free what the region holds; called once."""


class Backend(ABC):
    """Loads the payloads of its regions."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name that programs know it by."""

    @abstractmethod
    def load(self, payload: bytes, device: Device) -> Region:
        """Return a region that runs on `device`. Raises ProgramError where the payload is not usable."""


class BackendRegistry:
    """Backends by name."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def register(self, backend: Backend) -> None:
        """Add a backend. Raises RegistrationError where one of its name is there already."""
        if backend.name in self._backends:
            raise RegistrationError(f"a backend named {backend.name!r} is already registered")
        self._backends[backend.name] = backend

    def get(self, name: str) -> Backend | None:
        """Return the backend of that name, or None."""
        return self._backends.get(name)

    @contextlib.contextmanager
    def added(self, backend: Backend) -> Iterator[None]:
        """Register `backend` for the duration of a block."""
        self.register(backend)
        try:
            yield
        finally:
            del self._backends[backend.name]


BACKENDS = BackendRegistry()
"""The backends of this process."""


def find_backends(methods: Sequence[t.Method], where: object) -> dict[str, Backend]:
    """Return every backend of the methods. Raises MissingOperatorError, which lists all that are not registered."""
    names = sorted({delegate.backend for method in methods for delegate in method.delegates})
    found = {name: BACKENDS.get(name) for name in names}
    missing = [f"backend {name!r} is not registered" for name, backend in found.items() if backend is None]
    if missing:
        raise MissingOperatorError(where, missing)
    return {name: backend for name, backend in found.items() if backend is not None}

"""A loaded program: weights, memory and methods, and the sessions that run them."""

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from device_core import copy_ops
from device_core.allocator import allocators
from device_core.buffer import DeviceMemoryBuffer
from device_core.device import Device
from device_core.errors import ClosedError, DeviceError, InputError, ProgramError
from device_core.memory_manager import MemoryManager
from device_core.runtime.backends import Region, find_backends
from device_core.runtime.binding import Argument, Signature
from device_core.runtime.calls import CallSite, call_sites
from device_core.runtime.constants import ConstantStore
from device_core.runtime.kernels import find_operators
from device_core.runtime.meta import MethodMeta
from device_core.runtime.remap import devices_of, moved
from device_core.runtime.session import Session
from device_core.schema import types as t
from device_core.schema.codec import read_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the sessions of a module share of one method."""

    method: t.Method
    signature: Signature
    planned: Sequence[DeviceMemoryBuffer]
    sites: Sequence[CallSite]


class Module:
    """The methods of a program folder over one set of weights. Made by `load`; a context manager."""

    def __init__(self, program: t.Program, folder: Path) -> None:
        """Load what a checked program needs; `load` is the way to a module."""
        self.program = program
        self.lock = threading.RLock()
        self._sessions: list[Session] = []
        self._default: Session | None = None
        self._graph_pool: Any = None
        self._closed = False
        copy_ops.register()
        operators = find_operators(program.methods, folder)
        backends = find_backends(program.methods, folder)
        payloads = _payloads(program, folder)
        with ExitStack() as stack:
            memory = stack.enter_context(MemoryManager(program.methods))
            self._constants = stack.enter_context(ConstantStore(folder, program))
            self._entries = {}
            for method in program.methods:
                regions: list[Region] = []
                for delegate in method.delegates:
                    backend = backends[delegate.backend]
                    regions.append(backend.load(payloads[delegate.key], Device.parse(delegate.device)))
                    stack.callback(regions[-1].close)
                self._entries[method.name] = Entry(
                    method=method,
                    signature=Signature(method),
                    planned=memory.planned(method.name),
                    sites=call_sites(method, operators, regions),
                )
            self._memory = memory
            self._resources = stack.pop_all()

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: Device | None = None) -> Self:
        """Load a program folder.

        device: where the program's one device other than the host is to be; None: as it was exported.
        Everything is checked before a byte goes to a device. Raises ProgramError, which lists all problems of the
        folder, MissingOperatorError, which lists all operators and backends that are not registered, DeviceError where
        the machine lacks a device, and OutOfMemoryError; whatever is raised, all memory is freed.
        """
        program = read_program(folder)
        if device is not None:
            program = moved(program, device)
        missing = []
        for needed in sorted(devices_of(program)):
            try:
                allocators().require(needed)
            except DeviceError as error:
                missing.append(str(error))
        if missing:
            raise DeviceError(f"{folder}: " + "; ".join(missing))
        return cls(program, Path(folder))

    @property
    def method_names(self) -> tuple[str, ...]:
        """Return the names of the methods, in the program's order."""
        return tuple(method.name for method in self.program.methods)

    @property
    def constants(self) -> Mapping[tuple[str, str], torch.Tensor]:
        """Return the constants by name and device; they must not be written to."""
        return self._constants.tensors

    @property
    def uploaded_nbytes(self) -> int:
        """Return the bytes of constants that were copied to devices."""
        return self._constants.uploaded_nbytes

    @property
    def planned_nbytes(self) -> int:
        """Return the bytes of planned memory."""
        return self._memory.nbytes

    def method_meta(self, name: str) -> MethodMeta:
        """Return what is known of a method. Raises InputError where there is none of that name."""
        return MethodMeta.of(self.entry(name).method)

    def execute(
        self, name: str, inputs: Sequence[Argument] = (), *, outputs: Sequence[torch.Tensor | None] = ()
    ) -> tuple[Any, ...]:
        """Run a method in the default session, which is made by the first call; see `Session.execute`."""
        return self.default_session.execute(name, inputs, outputs=outputs)

    @property
    def default_session(self) -> Session:
        """Return the session of `execute`."""
        if self._default is None:
            self._default = self.new_session()
        return self._default

    def new_session(self) -> Session:
        """Return a session with state of its own. Raises OutOfMemoryError where there is no room for it."""
        self._check_open()
        session = Session(self)
        self._sessions.append(session)
        return session

    def graph_pool(self) -> Any:
        """Return the memory pool that captured methods share: what they allocate is free again when they end."""
        if self._graph_pool is None:
            self._graph_pool = torch.cuda.graph_pool_handle()
        return self._graph_pool

    def entry(self, name: str) -> Entry:
        """Return what sessions share of a method. Raises InputError where there is none of that name."""
        self._check_open()
        if name not in self._entries:
            raise InputError(f"method: expected one of {', '.join(self._entries)}, got {name!r}")
        return self._entries[name]

    def forget(self, session: Session) -> None:
        """Drop a session that was closed."""
        self._sessions = [known for known in self._sessions if known is not session]
        if self._default is session:
            self._default = None

    def close(self) -> None:
        """Close all sessions and free everything; a second call does nothing.

        Outputs that are still referred to keep the memory under them.
        """
        if not self._closed:
            for session in self._sessions:
                session.close()
            self._closed = True
            self._entries.clear()
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the module was closed")


def _payloads(program: t.Program, folder: Path) -> dict[str, bytes]:
    """Return the payloads of all regions by key. Raises ProgramError where one is damaged."""
    payloads, problems = {}, []
    for key in sorted({delegate.key for method in program.methods for delegate in method.delegates}):
        name = f"delegates/{key}"
        payloads[key] = (folder / name).read_bytes()
        expected = program.files[name].sha256
        if expected is not None and hashlib.sha256(payloads[key]).hexdigest() != expected:
            problems.append(f"file {name}: its content does not match its SHA-256; it was damaged")
    if problems:
        raise ProgramError(folder, problems)
    return payloads

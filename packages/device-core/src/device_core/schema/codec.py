"""Reading and writing of program folders: written aside, renamed when complete, checked when read."""

import glob
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import torch

from device_core.errors import ProgramError
from device_core.schema.dtypes import NAMES
from device_core.schema.shards import PADDING, ShardWriter
from device_core.schema.types import SCHEMA_VERSION, ConstantSpec, FileSpec, Program
from device_core.schema.validate import check_files, problems_of

PROGRAM_FILE = "program.json"
PARTIAL_MARK = ".partial-"
MAX_SHARD_NBYTES = 4 * 1024**3
MAX_PROGRAM_NBYTES = 1024**3

_DECODER = msgspec.json.Decoder(Program, strict=True)


def encode_program(program: Program) -> bytes:
    """Return the JSON of `program` with its checksum filled in."""
    return msgspec.json.encode(msgspec.structs.replace(program, checksum=_checksum(program)))


def decode_program(data: bytes, *, where: object = PROGRAM_FILE) -> Program:
    """Decode and validate the JSON of a program; files beside it are not looked at.

    Raises ProgramError, which lists all problems, where it is malformed, of another schema version, damaged
    (its checksum differs) or not consistent.
    """
    try:
        program = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(where, _version_problem(data) or [f"not a program: {error}"]) from error
    if program.schema_version != SCHEMA_VERSION:
        raise ProgramError(where, [_other_version(program.schema_version)])
    if program.checksum is not None and program.checksum != _checksum(program):
        raise ProgramError(where, ["its checksum does not match its content; it was damaged or edited"])
    if problems := problems_of(program):
        raise ProgramError(where, problems)
    return program


def read_program(folder: str | os.PathLike[str]) -> Program:
    """Read a program folder, except for the bytes of its constants and delegates.

    Raises ProgramError, which lists all problems: those of `program.json` or, where that is right, every file that
    is missing, cut short or does not hold the constants it should.
    """
    folder = Path(folder)
    path = folder / PROGRAM_FILE
    if not path.is_file():
        raise ProgramError(folder, [f"not a program folder: there is no {PROGRAM_FILE} in it"])
    if (size := path.stat().st_size) > MAX_PROGRAM_NBYTES:
        raise ProgramError(path, [f"too large: {size:,} bytes, at most {MAX_PROGRAM_NBYTES:,}"])
    program = decode_program(path.read_bytes(), where=path)
    if problems := check_files(folder, program):
        raise ProgramError(folder, problems)
    return program


def partial_folders(folder: Path) -> list[Path]:
    """Return what writers of `folder` have beside it: those at work, and those that were killed."""
    return list(folder.parent.glob(f"{glob.escape(_partial_stem(folder))}*"))


def _partial_stem(folder: Path) -> str:
    return f".{folder.name}{PARTIAL_MARK}"


class ProgramWriter:
    """Write a program folder, constant by constant.

    Use as a context manager: `add_constant`, `add_delegate`, `add_asset`, then `finish(program)`. Everything goes to a
    folder beside `folder`, named `.<name>.partial-<random>`, which is renamed by `finish` and removed when the block
    ends without it. Raises FileExistsError where `folder` exists, unless `overwrite` is set; the old folder is then
    replaced at the end.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        max_shard_nbytes: int = MAX_SHARD_NBYTES,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._overwrite = overwrite
        self._max_shard_nbytes = max_shard_nbytes
        self._partial = self.folder.with_name(f"{_partial_stem(self.folder)}{secrets.token_hex(4)}")
        self._shards: list[ShardWriter] = []
        self._constants: dict[str, tuple[ConstantSpec, int]] = {}
        self._files: dict[str, FileSpec] = {}
        self._assets: set[str] = set()
        self._open = False

    def __enter__(self) -> Self:
        self._refuse_existing()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir()
        self._open = True
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._open:
            self._open = False
            try:
                for shard in self._shards:
                    shard.abandon()
            finally:  # where the disk is full, closing a shard fails once more
                shutil.rmtree(self._partial)

    def add_constant(self, name: str, tensor: torch.Tensor) -> None:
        """Write one constant; it is stored contiguously and not kept."""
        self._check_open()
        if name in self._constants or name.startswith(PADDING):
            raise ValueError(f"constant {name!r} was added before, or has a name that is kept for padding")
        if tensor.dtype not in NAMES:
            known = ", ".join(NAMES.values())
            raise ValueError(f"constant {name!r}: expected a dtype among {known}, got {tensor.dtype}")
        tensor = tensor.detach().cpu().contiguous()
        if not self._shards or not self._shards[-1].fits(name, self._max_shard_nbytes, tensor.nbytes):
            if self._shards:
                self._shards[-1].close()
            self._shards.append(ShardWriter(self._partial / f"shard-{len(self._shards)}"))
        self._shards[-1].add(name, tensor)
        spec = ConstantSpec(dtype=NAMES[tensor.dtype], sizes=tuple(tensor.shape))
        self._constants[name] = (spec, len(self._shards) - 1)

    def add_delegate(self, key: str, payload: bytes) -> None:
        """Write the payload of an opaque region under `delegates/<key>`."""
        path = f"delegates/{key}"
        self._write(path, payload)
        self._files[path] = FileSpec(nbytes=len(payload), sha256=hashlib.sha256(payload).hexdigest())

    def add_asset(self, name: str, content: bytes) -> None:
        """Write a file that travels with the program, such as a tokenizer; the runtime does not look at it."""
        self._write(name, content)

    def finish(self, program: Program) -> Program:
        """Complete the folder and give it its name; returns the program as written.

        `program.constants` must have the names, dtypes and sizes of the constants that were added; its shards, `files`
        and `checksum` are filled in here. Raises ProgramError where the program is not valid or they differ.
        """
        self._check_open()
        names = self._close_shards()
        complete = self._completed(program, names)
        problems = problems_of(complete) + self._differences(program)
        if problems:
            raise ProgramError(self.folder, problems)
        (self._partial / PROGRAM_FILE).write_bytes(encode_program(complete))
        self._publish()
        return complete

    def _close_shards(self) -> list[str]:
        if self._shards:
            self._shards[-1].close()
        count = len(self._shards)
        names = [f"constants-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        for shard, name in zip(self._shards, names, strict=True):
            shard.path.rename(self._partial / name)
            self._files[name] = FileSpec(nbytes=(self._partial / name).stat().st_size)
        self._shards = []
        return names

    def _completed(self, program: Program, names: list[str]) -> Program:
        constants = {
            name: msgspec.structs.replace(spec, shard=names[shard]) for name, (spec, shard) in self._constants.items()
        }
        complete = msgspec.structs.replace(program, constants=constants, files=dict(sorted(self._files.items())))
        return msgspec.structs.replace(complete, checksum=_checksum(complete))

    def _differences(self, program: Program) -> list[str]:
        problems = [f"constant {n!r} was not added" for n in sorted(program.constants.keys() - self._constants.keys())]
        for name, (given, _) in sorted(self._constants.items()):
            if name not in program.constants:
                problems.append(f"constant {name!r} was added, but the program does not declare it")
            elif (wanted := program.constants[name]).dtype != given.dtype or wanted.sizes != given.sizes:
                problems.append(
                    f"constant {name!r}: expected {wanted.dtype} {wanted.sizes}, given {given.dtype} {given.sizes}"
                )
        return problems

    def _publish(self) -> None:
        self._refuse_existing()
        old = None
        if self.folder.exists():
            old = self._partial.with_name(self._partial.name + "-old")
            self.folder.rename(old)
        self._partial.rename(self.folder)
        self._open = False
        if old is not None:
            shutil.rmtree(old)

    def _write(self, path: str, content: bytes) -> None:
        self._check_open()
        parts = Path(path).parts
        reserved = path == PROGRAM_FILE or path.startswith("constants-") or path in self._assets
        if not parts or path.startswith("/") or ".." in parts or reserved:
            raise ValueError(f"file {path!r}: expected a new name within the folder")
        self._assets.add(path)
        target = self._partial / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def _refuse_existing(self) -> None:
        if self.folder.exists() and not self._overwrite:
            raise FileExistsError(f"{self.folder} exists already; it is replaced only when asked to overwrite")

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("ProgramWriter: use it in a `with` block, and finish once")


def _checksum(program: Program) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(program, checksum=None))).hexdigest()


def _version_problem(data: bytes) -> list[str]:
    """Say so where the JSON that cannot be decoded is of another schema version."""

    class Version(msgspec.Struct):
        schema_version: int = SCHEMA_VERSION

    try:
        version = msgspec.json.decode(data, type=Version).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [] if version == SCHEMA_VERSION else [_other_version(version)]


def _other_version(version: int) -> str:
    return f"schema version: expected {SCHEMA_VERSION}, got {version}; export the model again with this version"

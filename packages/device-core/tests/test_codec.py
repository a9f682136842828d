"""Program folders: round trips, damage, and writers that fail."""

import contextlib
import errno
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from device_core import ProgramError, ProgramWriter, read_program
from device_core.schema import types as t
from device_core.schema.codec import PARTIAL_MARK, decode_program, encode_program
from device_core.schema.dtypes import DTYPES
from device_core.schema.shards import ShardReader, ShardWriter
from device_core.testing import MethodBuilder, write_program

Folder = Callable[..., Path]


def constant_program(**constants: torch.Tensor) -> t.Program:
    method = MethodBuilder("f")
    names = {dtype: name for name, dtype in DTYPES.items()}
    values = [method.constant(n, names[c.dtype], tuple(c.shape)) for n, c in constants.items()]
    specs = {n: t.ConstantSpec(dtype=names[c.dtype], sizes=tuple(c.shape)) for n, c in constants.items()}
    return t.Program(producer="test", constants=specs, methods=(method.build(values),))


def test_folder_round_trip(stateful: Folder) -> None:
    folder = stateful("cuda:1")
    program = read_program(folder)
    assert decode_program(encode_program(program)) == program
    assert program.methods[0].buffers[0].device == "cuda:1"
    assert {p.name for p in folder.iterdir()} == {"program.json", "constants-00001-of-00001.safetensors"}


def test_program_of_the_host_names_no_device(stateful: Folder) -> None:
    assert b'"device"' not in (stateful("cpu") / "program.json").read_bytes()


@pytest.mark.parametrize("name", DTYPES, ids=str)
def test_every_dtype_survives(tmp_path: Path, name: str) -> None:
    constant = torch.arange(6).to(DTYPES[name]).reshape(2, 3)
    with ProgramWriter(tmp_path / "p") as writer:
        writer.add_constant("c", constant)
        program = writer.finish(constant_program(c=constant))
    with ShardReader(tmp_path / "p" / program.constants["c"].shard) as reader:
        assert torch.equal(reader.tensor("c").view(torch.uint8), constant.view(torch.uint8))


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)], ids=str)
def test_every_shape_survives(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    constant = torch.randn(sizes)
    program = constant_program(c=constant)
    with ProgramWriter(tmp_path / "p") as writer:
        writer.add_constant("c", constant)
        written = writer.finish(program)
    with ShardReader(tmp_path / "p" / written.constants["c"].shard) as reader:
        assert torch.equal(reader.tensor("c"), constant)


def test_views_are_stored_contiguously(tmp_path: Path) -> None:
    constant = torch.arange(24.0).reshape(4, 6)[::2, 1:].t()
    with ProgramWriter(tmp_path / "p") as writer:
        writer.add_constant("c", constant)
        written = writer.finish(constant_program(c=constant))
    with ShardReader(tmp_path / "p" / written.constants["c"].shard) as reader:
        assert torch.equal(reader.tensor("c"), constant)


def test_constants_are_aligned(tmp_path: Path) -> None:
    constants = {
        "a": torch.zeros(3, dtype=torch.uint8),
        "b": torch.arange(5.0),
        "c": torch.arange(64),
        "d": torch.ones(1, dtype=torch.float64),
        "e": torch.ones(0),
    }
    with ProgramWriter(tmp_path / "p") as writer:
        for name, constant in constants.items():
            writer.add_constant(name, constant)
        written = writer.finish(constant_program(**constants))
    assert read_program(tmp_path / "p") == written
    with ShardReader(tmp_path / "p" / written.constants["a"].shard) as reader:
        for name, constant in constants.items():
            tensor = reader.tensor(name)
            assert torch.equal(tensor, constant)
            assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


def test_shards_are_bounded(tmp_path: Path) -> None:
    constants = {f"c{i}": torch.full((100,), float(i)) for i in range(10)}
    with ProgramWriter(tmp_path / "p", max_shard_nbytes=1000) as writer:
        for name, constant in constants.items():
            writer.add_constant(name, constant)
        program = writer.finish(constant_program(**constants))
    assert sorted({spec.shard for spec in program.constants.values()}) == [
        f"constants-{i:05d}-of-00005.safetensors" for i in range(1, 6)
    ]
    assert read_program(tmp_path / "p") == program


def test_many_names_fill_a_shard(tmp_path: Path) -> None:
    constants = {f"layer_with_a_long_name_{i:04d}." + "x" * 100: torch.tensor([i]) for i in range(1500)}
    with ProgramWriter(tmp_path / "p") as writer:
        for name, constant in constants.items():
            writer.add_constant(name, constant)
        program = writer.finish(constant_program(**constants))
    assert len({spec.shard for spec in program.constants.values()}) > 1
    assert read_program(tmp_path / "p") == program


def test_failure_leaves_no_folder(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), ProgramWriter(tmp_path / "p") as writer:
        writer.add_constant("c", torch.ones(3))
        assert [PARTIAL_MARK in p.name for p in tmp_path.iterdir()] == [True]
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_failure_on_a_full_disk_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is buffered cannot be written when the shard is closed either."""

    def full(_: ShardWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with ProgramWriter(tmp_path / "program") as writer:
            writer.add_constant("weight", torch.zeros(3))
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "abandon", full)
    with pytest.raises(OSError, match="No space left"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_killed_writer_leaves_no_folder_of_that_name(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, torch\n"
        "from device_core import ProgramWriter\n"
        "with ProgramWriter(sys.argv[1]) as writer:\n"
        "    writer.add_constant('c', torch.ones(1000))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path / "p")], check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f".p{PARTIAL_MARK}")
    write_program(tmp_path / "p", [MethodBuilder("f").build([])])
    assert read_program(tmp_path / "p").methods[0].name == "f"


def test_forgotten_finish_leaves_no_folder(tmp_path: Path) -> None:
    with ProgramWriter(tmp_path / "p") as writer:
        writer.add_asset("config.json", b"{}")
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    write_program(tmp_path / "p", [MethodBuilder("old").build([])])
    with pytest.raises(FileExistsError), ProgramWriter(tmp_path / "p"):
        pass
    assert read_program(tmp_path / "p").methods[0].name == "old"
    with ProgramWriter(tmp_path / "p", overwrite=True) as writer:
        writer.finish(t.Program(producer="test", methods=(MethodBuilder("new").build([]),)))
    assert read_program(tmp_path / "p").methods[0].name == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("added", "declared", "message"),
    [
        ({}, {"c": torch.ones(3)}, "'c' was not added"),
        ({"c": torch.ones(3)}, {}, "does not declare"),
        ({"c": torch.ones(3)}, {"c": torch.ones(4)}, r"expected float32 \(4,\), given float32 \(3,\)"),
        ({"c": torch.ones(3)}, {"c": torch.ones(3).int()}, "expected int32"),
    ],
    ids=["missing", "undeclared", "other-sizes", "other-dtype"],
)
def test_constants_must_be_those_of_the_program(
    tmp_path: Path, added: dict[str, torch.Tensor], declared: dict[str, torch.Tensor], message: str
) -> None:
    with ProgramWriter(tmp_path / "p") as writer:
        for name, constant in added.items():
            writer.add_constant(name, constant)
        with pytest.raises(ProgramError, match=message):
            writer.finish(constant_program(**declared))
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "program.json", "constants-1"], ids=repr)
def test_assets_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with ProgramWriter(tmp_path / "p") as writer, pytest.raises(ValueError, match="within the folder"):
        writer.add_asset(name, b"")


def test_nothing_is_added_twice(tmp_path: Path) -> None:
    with ProgramWriter(tmp_path / "p") as writer:
        writer.add_constant("c", torch.ones(1))
        writer.add_asset("a", b"")
        with pytest.raises(ValueError, match="before"):
            writer.add_constant("c", torch.ones(1))
        with pytest.raises(ValueError, match="new name"):
            writer.add_asset("a", b"")


def test_not_a_program_folder(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"no program\.json"):
        read_program(tmp_path)


def test_missing_and_truncated_shards_are_named(stateful: Folder) -> None:
    folder = stateful()
    shard = folder / "constants-00001-of-00001.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-4])
    with pytest.raises(ProgramError, match=rf"{shard.name}: expected {len(data):,} bytes, found {len(data) - 4:,}"):
        read_program(folder)
    shard.unlink()
    with pytest.raises(ProgramError, match=f"{shard.name} is missing"):
        read_program(folder)


def test_shard_of_another_program_is_refused(stateful: Folder, tmp_path: Path) -> None:
    folder = stateful()
    shard = folder / "constants-00001-of-00001.safetensors"
    with ProgramWriter(tmp_path / "other") as writer:
        writer.add_constant("weight", torch.ones(2, 2))
        writer.add_constant("end", torch.ones(4))
        writer.finish(constant_program(weight=torch.ones(2, 2), end=torch.ones(4)))
    (tmp_path / "other" / shard.name).rename(shard)
    with pytest.raises(ProgramError) as caught:
        read_program(folder)
    assert len(caught.value.problems) == 2
    assert "constant 'start' is missing" in str(caught.value)
    assert "expected F32 (4,), found F32 (2, 2)" in str(caught.value)


def test_every_flipped_byte_is_noticed(stateful: Folder) -> None:
    path = stateful() / "program.json"
    data = path.read_bytes()
    program = decode_program(data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            found = decode_program(bytes(changed))
        except ProgramError:
            continue
        assert found == program, f"byte {position} changed the program unnoticed"


def test_another_schema_version_is_named(stateful: Folder) -> None:
    path = stateful() / "program.json"
    content = json.loads(path.read_bytes())
    content["schema_version"] = 1
    content["something_new"] = {}
    path.write_text(json.dumps(content))
    with pytest.raises(ProgramError, match="expected 2, got 1; export the model again"):
        read_program(path.parent)


def test_unknown_fields_are_refused(stateful: Folder) -> None:
    path = stateful() / "program.json"
    content = json.loads(path.read_bytes()) | {"checksum": None, "surprise": 1}
    path.write_text(json.dumps(content))
    with pytest.raises(ProgramError, match="surprise"):
        read_program(path.parent)


def test_edited_by_hand_without_checksum(stateful: Folder) -> None:
    path = stateful() / "program.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"checksum": None, "producer": "me"}, indent=1))
    assert read_program(path.parent).producer == "me"


@pytest.mark.parametrize("value", [0, -1, 2**62, 0.1, -0.0, 1e300, True, False, None, "", "ü", "inf"], ids=repr)
def test_scalars_survive(value: float | str | None) -> None:
    method = MethodBuilder("f")
    method.literal(value)
    program = t.Program(producer="test", methods=(method.build([]),))
    read = decode_program(encode_program(program)).methods[0].values[0]
    assert isinstance(read, t.ScalarValue)
    assert read.value == value
    assert type(read.value) is type(value)


def test_large_offsets_survive() -> None:
    value = t.TensorValue(
        name="x",
        dtype="uint8",
        sizes=(1,),
        strides=(1,),
        device="cuda:0",
        storage=t.Planned(buffer=0, offset_bytes=2**40),
    )
    buffer = t.PlannedBuffer(nbytes=2**40 + 1, device="cuda:0")
    method = t.Method(name="f", values=(value,), inputs=(), outputs=(), buffers=(buffer,), instructions=())
    program = t.Program(producer="test", methods=(method,))
    assert msgspec.structs.replace(decode_program(encode_program(program)), checksum=None) == program

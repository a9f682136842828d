"""Damaged program folders: each loads, or is refused with an error of ours; nothing crashes, hangs or grows."""

import copy
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from device_core import DeviceCoreError, Module
from device_core.schema import types as t
from device_core.testing import MethodBuilder, RecordingDevice, write_program

BYTES = 9_000
STRUCTURES = 9_000
SHARDS = 2_500
MAX_PLANNED_NBYTES = 1 << 24


def rich_program(folder: Path) -> Path:
    """Write a program that uses most of the format, on the host and two devices."""
    method = MethodBuilder("f", symbols={"s0": (1, 8), "n": (0, 3)})
    x = method.input("x", "float32", ("s0", 4))
    method.input_value(t.SymIntValue(name="n", expression="n"))
    weight = method.constant("weight", "float32", (4,), device="cuda:0")
    total = method.state("total", "float32", (1, 4), device="cuda:0")
    on_device = method.planned("x_0", "float32", ("s0", 4), device="cuda:0")
    last = method.value(
        t.TensorValue(
            name="last", dtype="float32", sizes=(1, 4), strides=(4, 1), device="cuda:0",
            storage=t.Planned(buffer=0, offset_bytes="(s0 - 1)*16"),
        )
    )  # fmt: skip
    scaled = method.planned("scaled", "float32", ("s0", 4), device="cuda:0")
    out = method.planned("out", "float32", ("s0", 4), kind="io")
    other = method.planned("other", "float32", ("s0", 4), device="cuda:1")
    both = method.planned("both", "float32", ("s0", 8), device="cuda:0", kind="io")
    method.call("device_copy::h2d.out", x, out=on_device)
    method.call("device_copy::h2d.out", x, out=other)
    method.call("aten::mul.out", on_device, weight, out=scaled)
    method.call("aten::add_.Tensor", total, last, writes=(total,))
    pair = method.value(t.ListValue(name="pair", items=(on_device, scaled)))
    method.call("aten::cat.out", pair, method.literal(1), out=both)
    method.call("device_copy::d2h.out", scaled, out=out)
    second = MethodBuilder("g")
    y = second.input("y", "int64", (3,))
    flag = second.planned("flag", "bool", ())
    result = second.planned("result", "int64", (3,), kind="io")
    zero = second.literal(0)
    second.instructions.append(t.Move(source=y, target=result))
    second.call("aten::any.all_out", result, out=flag)
    second.instructions.append(t.JumpFalse(condition=flag, target=4))
    second.call("aten::sub_.Scalar", result, zero, writes=(result,))
    write_program(
        folder,
        [method.build([out, both]), second.build([result])],
        constants={"weight": torch.ones(4), "start": torch.zeros(1, 4)},
        state={"total": t.StateSpec(dtype="float32", sizes=(1, 4), device="cuda:0", initial="start")},
    )
    return folder


def try_to_load(folder: Path, device: RecordingDevice) -> str:
    """Load a folder and make a session; returns what came of it. Memory must be what the program states, and freed."""
    try:
        with Module.load(folder) as module:
            session = module.new_session()
            stated = sum(b.nbytes for m in module.program.methods for b in m.buffers)
            assert module.planned_nbytes <= stated
            session.close()
    except DeviceCoreError as error:
        return type(error).__name__ if str(error) else "an error without a message"
    finally:
        device.check_leaks()
    return "loaded"


def paths(content: Any) -> list[list[Any]]:
    """Return the path of every place in a JSON document."""
    found: list[list[Any]] = []
    for key, child in content.items() if isinstance(content, dict) else enumerate(content):
        found.append([key])
        if isinstance(child, dict | list):
            found += [[key, *rest] for rest in paths(child)]
    return found


def at(content: Any, path: Sequence[Any]) -> Any:
    for key in path:
        content = content[key]
    return content


STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**31 - 1, 2**62, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308, "", "s0",
    "n", "s0*s0", "s0//n", "1//0", "9"*400, "(" * 300, "cuda:1", "cuda:99", "cpu", "int64", "bool", "aten::add.out",
    "aten::resize_", "io", "scratch", "../x", [], {}, [0], [0, 1, 2], {"type": "list"}, {"type": "bound", "value": 0},
    {"type": "move", "source": 0, "target": 0}, {"type": "jump_false", "condition": 0, "target": 0},
]  # fmt: skip


def mutate(content: dict[str, Any], places: list[list[Any]], rng: random.Random) -> None:
    """Change a document in one to three places; `places` are those of the document as it was."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path, other = rng.choice(places), rng.choice(places)
        try:
            container, key = at(content, path[:-1]), path[-1]
            present, elsewhere = container[key], at(content, other)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed it
        if isinstance(container, str):
            continue  # an earlier change put text, which has places but cannot be changed, where it was
        match rng.randrange(6):
            case 0:
                container[key] = rng.choice(STRANGE)
            case 1:
                del container[key]
            case 2 | 3 if type(elsewhere) is type(present):
                container[key] = copy.deepcopy(elsewhere)
            case 4 if isinstance(container, list):
                container.insert(key, copy.deepcopy(present))
            case _ if type(present) is int:
                container[key] = present + rng.choice([-1, 1, 2, 4, 16, -16, 1 << 20])
            case _:
                container[key] = rng.choice([x for x in STRANGE if type(x) is type(present)] or STRANGE)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else tmp_path_factory.getbasetemp()
    written = rich_program(base / f"device-core-mutations-{time.monotonic_ns()}")
    yield written
    shutil.rmtree(written)


def report(kind: str, outcomes: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{sum(outcomes.values()):,} folders with mutated {kind}: {dict(outcomes.most_common())}")


@pytest.mark.slow
def test_mutated_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path, outcomes = random.Random(1), folder / "program.json", Counter[str]()
    content = json.loads(path.read_bytes()) | {"checksum": None}
    data = json.dumps(content, separators=(",", ":")).encode()
    with RecordingDevice(capacity_nbytes=MAX_PLANNED_NBYTES) as device:
        for _ in range(BYTES):
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 5])):
                position = rng.randrange(len(changed))
                match rng.randrange(4):
                    case 0:
                        changed[position] ^= 1 << rng.randrange(8)
                    case 1:
                        changed[position] = rng.choice(b'0123456789-"[]{},:esn')
                    case 2:
                        del changed[position : position + rng.choice([1, 1, 3, 50])]
                    case 3:
                        changed[position:position] = changed[rng.randrange(len(changed)) :][: rng.choice([1, 3, 40])]
                if not changed:
                    break
            path.write_bytes(changed)
            outcomes[try_to_load(folder, device)] += 1
    report("bytes", outcomes, capsys)
    assert sum(outcomes.values()) == BYTES
    assert outcomes["ProgramError"] > BYTES // 2


@pytest.mark.slow
def test_mutated_structure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path, outcomes = random.Random(2), folder / "program.json", Counter[str]()
    data = json.dumps(json.loads(path.read_bytes()) | {"checksum": None})
    places = paths(json.loads(data))
    with RecordingDevice(capacity_nbytes=MAX_PLANNED_NBYTES) as device:
        for _ in range(STRUCTURES):
            content = json.loads(data)
            mutate(content, places, rng)
            path.write_text(json.dumps(content))
            outcomes[try_to_load(folder, device)] += 1
    report("structure", outcomes, capsys)
    assert sum(outcomes.values()) == STRUCTURES
    assert outcomes["ProgramError"] > STRUCTURES // 3
    assert outcomes["loaded"] > 100
    assert outcomes["an error without a message"] == 0


@pytest.mark.slow
def test_mutated_shards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, outcomes = random.Random(3), Counter[str]()
    path = next(folder.glob("constants-*"))
    data = path.read_bytes()
    used = len(data.rstrip(b" ")) if data.endswith(b" ") else len(data)
    header = data.index(b"  ")
    with RecordingDevice(capacity_nbytes=MAX_PLANNED_NBYTES) as device:
        for _ in range(SHARDS):
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 5])):
                position = rng.randrange(header) if rng.random() < 0.8 else rng.randrange(used)
                changed[position] = rng.choice([rng.randrange(256), *b'0123456789"[]{},:'])
            if rng.random() < 0.1:
                del changed[rng.randrange(len(changed)) :]
            path.write_bytes(changed)
            outcomes[try_to_load(folder, device)] += 1
    report("shards", outcomes, capsys)
    assert sum(outcomes.values()) == SHARDS
    assert outcomes["ProgramError"] > SHARDS // 3


def test_the_program_itself_loads_and_runs(folder: Path) -> None:
    with RecordingDevice() as device, Module.load(folder) as module:
        x = torch.randn(3, 4)
        out, both = module.execute("f", [x, 2])
        assert torch.equal(out, x)
        assert both.shape == (3, 8)
        assert torch.equal(module.execute("g", [torch.arange(3)])[0], torch.arange(3))
        assert device.transferred("d2h") == (1, 48)


MUTATORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "state-of-a-terabyte": lambda c: (c["state"]["total"].update(sizes=[2**38, 4], initial=None),),
    "honest-huge-buffer": lambda c: (
        c["methods"][1]["buffers"][0].update(nbytes=2**45),
        c["methods"][1]["values"][1].update(sizes=[2**45], strides=[1]),
    ),
}


@pytest.mark.parametrize("change", MUTATORS.values(), ids=MUTATORS.keys())
def test_what_is_stated_but_not_there(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "program.json"
    content = json.loads(path.read_bytes()) | {"checksum": None}
    change(content)
    path.write_text(json.dumps(content))
    with RecordingDevice(capacity_nbytes=MAX_PLANNED_NBYTES) as device:
        assert try_to_load(folder, device) == "OutOfMemoryError"

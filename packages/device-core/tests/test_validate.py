"""Every rule of a program has a program that breaks it, and gets a message that says how."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from device_core import ProgramError
from device_core.schema.codec import decode_program, encode_program, read_program

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def content(stateful: Callable[[], Path]) -> dict[str, Any]:
    """Return the JSON of a good program without its checksum; method 0 is `step`, method 1 is `rows`."""
    return json.loads((stateful() / "program.json").read_bytes()) | {"checksum": None}


def step(content: dict[str, Any]) -> dict[str, Any]:
    return content["methods"][0]


def rows(content: dict[str, Any]) -> dict[str, Any]:
    return content["methods"][1]


def value(content: dict[str, Any], name: str, method: int = 0) -> dict[str, Any]:
    return next(v for v in content["methods"][method]["values"] if v["name"] == name)


CASES: list[tuple[str, Change, str]] = [
    ("same-method-twice", lambda c: c["methods"].append(copy.deepcopy(step(c))), "method 'step' is there 2 times"),
    ("constant-dtype", lambda c: c["constants"]["weight"].update(dtype="int4"), "unknown dtype 'int4'"),
    ("constant-too-large", lambda c: c["constants"]["weight"].update(sizes=[2**30, 2**30]), "too large"),
    ("negative-size", lambda c: c["constants"]["weight"].update(sizes=[-1]), "Expected `int` >= 0"),
    ("initial-missing", lambda c: c["state"]["total"].update(initial="x"), "'x', which is not there"),
    ("initial-differs", lambda c: c["state"]["total"].update(sizes=[2, 2]), r"expected an initial constant float32"),
    ("state-device", lambda c: c["state"]["total"].update(device="tpu"), "expected one of cpu, cuda"),
    ("device-index", lambda c: value(c, "x").update(device="cuda:-1"), "expected an index from 0 to 127"),
    ("device-spelling", lambda c: value(c, "x").update(device="CUDA:0"), "expected it written as 'cuda:0'"),
    ("file-outside", lambda c: c["files"].update({"../x": {"nbytes": 1}}), "expected a path within the folder"),
    ("symbol-name", lambda c: rows(c)["symbols"][0].update(name="s 0"), "made of letters, digits and _"),
    ("symbol-twice", lambda c: rows(c)["symbols"].append({"name": "s0", "min": 1, "max": 8}), "expected one of that"),
    ("symbol-range", lambda c: rows(c)["symbols"][0].update(min=9), "range 9 to 8 is empty"),
    (
        "symbol-unknown-to-inputs",
        lambda c: rows(c)["symbols"].append({"name": "s1", "min": 1, "max": 8}),
        "s1 does not follow from the inputs",
    ),
    ("operator-name", lambda c: step(c)["operators"].__setitem__(0, "add"), "written namespace::name.overload"),
    ("input-index", lambda c: step(c).update(inputs=[99]), "input or output 99: there are 4 values"),
    ("input-twice", lambda c: step(c).update(inputs=[0, 0]), "is there 2 times"),
    ("input-constant", lambda c: step(c).update(inputs=[0, 2]), "expected a bound or planned tensor"),
    ("value-dtype", lambda c: value(c, "x").update(dtype="float31"), "unknown dtype 'float31'"),
    ("rank", lambda c: value(c, "x").update(strides=[]), "1 sizes and 0 strides"),
    ("dim-syntax", lambda c: value(c, "x", 1).update(sizes=["s0**2", 4]), "is not allowed"),
    ("dim-symbol", lambda c: value(c, "x", 1).update(sizes=["s9", 4]), "unknown symbol s9"),
    ("negative-stride", lambda c: value(c, "x").update(strides=[-1]), "negative size, stride or offset"),
    ("negative-at-minimum", lambda c: value(c, "out", 1).update(sizes=["s0 - 2", 4]), "negative size, stride"),
    ("buffer-index", lambda c: value(c, "out")["storage"].update(buffer=7), "buffer 7: there are 1"),
    ("buffer-device", lambda c: step(c)["buffers"][0].update(device="cuda:0"), "but its buffer 0 is on cuda:0"),
    ("beyond-buffer", lambda c: value(c, "out")["storage"].update(offset_bytes=4), "ends at byte 20 of 16"),
    ("beyond-constant", lambda c: value(c, "weight").update(sizes=[5]), "of its constant 'weight'"),
    ("beyond-state", lambda c: value(c, "total").update(strides=[2]), "of its state 'total'"),
    ("beyond-bound", lambda c: value(c, "last", 1)["storage"].update(offset_bytes="s0*16"), "of its bound value 0"),
    ("misaligned", lambda c: value(c, "out")["storage"].update(offset_bytes=2), "multiple of the element size 4"),
    ("boastful-buffer", lambda c: step(c)["buffers"][0].update(nbytes=2**40), "its last tensor ends at 16"),
    ("no-such-constant", lambda c: value(c, "weight")["storage"].update(name="w"), "there is no constant 'w'"),
    ("no-such-state", lambda c: value(c, "total")["storage"].update(name="w"), "there is no state 'w'"),
    ("state-elsewhere", lambda c: value(c, "total").update(device="cuda:0"), "but state 'total' is on cpu"),
    ("bound-to-constant", lambda c: value(c, "x")["storage"].update(value=2), "which is not a bound tensor"),
    ("bound-to-nothing", lambda c: step(c).update(inputs=[]), "neither an input nor an output"),
    ("scratch-output", lambda c: step(c)["buffers"][0].update(kind="scratch"), "expected an io buffer"),
    ("buffer-kind", lambda c: step(c)["buffers"][0].update(kind="other"), "Invalid enum value 'other'"),
    ("argument-index", lambda c: step(c)["instructions"][0].update(args=[1, 44]), "value 44: there are 4"),
    ("operator-index", lambda c: step(c)["instructions"][0].update(operator=5), "operator 5: there are 2"),
    ("writes-constant", lambda c: step(c)["instructions"][1].update(outputs=[2]), "which nothing may write"),
    (
        "writes-stranger",
        lambda c: step(c)["instructions"][0].update(outputs=[3]),
        "output 3 is not among its arguments",
    ),
    (
        "mixed-devices",
        lambda c: value(c, "x").update(device="cuda:0"),
        "its tensors are on cpu, cuda:0",
    ),
    (
        "delegate-index",
        lambda c: step(c)["instructions"].append({"type": "delegate", "delegate": 0, "args": [], "outputs": []}),
        "delegate 0: there are 0",
    ),
    (
        "move-differs",
        lambda c: (
            step(c)["instructions"].append({"type": "move", "source": 0, "target": 3})
            or value(c, "x").update(dtype="int32")
        ),
        "differ in dtype, sizes or device",
    ),
    (
        "jump-target",
        lambda c: step(c)["instructions"].append({"type": "jump_false", "condition": 0, "target": 9}),
        "target 9: there are 3 instructions",
    ),
    (
        "jump-condition",
        lambda c: step(c)["instructions"].append({"type": "jump_false", "condition": 0, "target": 0}),
        "expected a flag or a bool tensor on the host",
    ),
    (
        "list-of-lists",
        lambda c: step(c)["values"].extend([{"type": "list", "name": "l", "items": [4]}]),
        "item 4 is itself a list",
    ),
    (
        "list-index",
        lambda c: step(c)["values"].extend([{"type": "list", "name": "l", "items": [40]}]),
        "item 40: there are 5 values",
    ),
    ("no-instructions", lambda c: step(c).pop("instructions"), "missing required field `instructions`"),
    ("huge-number", lambda c: value(c, "x").update(sizes=[10**30]), "not a program"),
    ("other-type", lambda c: value(c, "x").update(type="sparse"), "Invalid value 'sparse'"),
]


@pytest.mark.parametrize(("change", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_broken_rule_is_named(content: dict[str, Any], change: Change, message: str) -> None:
    decode_program(json.dumps(content).encode())
    change(content)
    with pytest.raises(ProgramError, match=message):
        decode_program(json.dumps(content).encode())


def test_all_problems_come_at_once(content: dict[str, Any]) -> None:
    value(content, "out")["storage"].update(buffer=7)
    value(content, "weight")["storage"].update(name="w")
    step(content)["instructions"][0].update(operator=5)
    rows(content)["operators"].append("nonsense")
    with pytest.raises(ProgramError) as caught:
        decode_program(json.dumps(content).encode())
    assert len(caught.value.problems) == 4


def test_files_are_listed(stateful: Callable[[], Path]) -> None:
    folder = stateful()
    path = folder / "program.json"
    content = json.loads(path.read_bytes()) | {"checksum": None, "files": {}}
    path.write_text(json.dumps(content))
    with pytest.raises(ProgramError, match="not among the files"):
        read_program(folder)


def test_good_program_is_good(content: dict[str, Any]) -> None:
    program = decode_program(json.dumps(content).encode())
    assert decode_program(encode_program(program)).methods == program.methods

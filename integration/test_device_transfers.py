"""The tiny model, exported for a GPU, on a fake one: what crosses the bus, and what is shared."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_core import HOST, Device, Module, Session, clone_to
from device_core.testing import RecordingDevice
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.sampling import COLUMNS
from qwen35_tiny import checkpoint_path

CUDA = Device.parse("cuda:0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny model as a program for `cuda:0`, one slot, int4 matrices."""
    path = tmp_path_factory.mktemp("transfers") / "program"
    options = ExportOptions(group_size=32, max_context=64, device="cuda:0", activations="float")
    export_checkpoint(checkpoint_path(), path, options)
    return path


@pytest.fixture
def recording() -> Iterator[RecordingDevice]:
    with RecordingDevice(1) as device:
        yield device


def greedy() -> list[torch.Tensor]:
    """Return the sampling parameters of one row that takes the largest logit."""
    off = {"top_p": 1, "repetition_penalty": 1}
    return [torch.tensor([off.get(name, 0)], dtype=dtype) for name, dtype in COLUMNS]


def put(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return clone_to(torch.tensor(values, dtype=dtype), CUDA)


def decode(session: Session, prompt: list[int], steps: int) -> list[int]:
    """Prefill, then greedy steps whose inputs are all on the device; each token is read, 8 bytes."""
    zero, one = put(0), put(1)
    columns = [clone_to(column, CUDA) for column in greedy()]
    positions = put(len(prompt))
    (logits,) = session.execute("prefill", [put(*prompt), zero, zero])
    chosen = []
    for _ in range(steps):
        (tokens,) = session.execute("sample", [logits, *columns, positions, zero])
        chosen.append(int(clone_to(tokens, HOST)))
        (logits,) = session.execute("decode", [tokens, positions, zero])
        positions.add_(one)
    return chosen


def test_constants_are_uploaded_once_for_all_methods(recording: RecordingDevice, folder: Path) -> None:
    with Module.load(folder) as module:
        used = {name for method in module.method_names for name in module.method_meta(method).constants}
        nbytes = sum(module.constants[name, "cuda:0"].nbytes for name in used)
        assert recording.transferred("h2d") == (len(used), nbytes)
        assert module.uploaded_nbytes == nbytes
        recording.forget()
        with module.new_session() as first, module.new_session() as second:
            decode(first, [1, 2, 3], 1)
            decode(second, [1, 2, 3], 1)
        sizes = {transfer.nbytes for transfer in recording.transfers}
        assert max(sizes) == 24  # the prompt
        assert {module.constants[name, "cuda:0"].device for name in used} == {torch.device("cuda:0")}


@pytest.mark.parametrize("steps", [1, 12], ids="steps{}".format)
def test_a_step_sends_nothing_and_returns_eight_bytes(recording: RecordingDevice, folder: Path, steps: int) -> None:
    with Module.load(folder) as module, module.new_session() as session:
        decode(session, [5, 6, 7, 8], 0)
        recording.forget()
        decode(session, [5, 6, 7, 8], 0)
        before = recording.transferred("h2d"), recording.transferred("d2h")
        recording.forget()
        decode(session, [5, 6, 7, 8], steps)
        assert recording.transferred("h2d") == before[0]
        assert before[1] == (0, 0)
        assert recording.transferred("d2h") == (steps, 8 * steps)


def test_tokens_are_those_of_the_host(recording: RecordingDevice, folder: Path) -> None:
    prompt = list(range(20, 37))
    with Module.load(folder) as module, module.new_session() as session:
        on_device = decode(session, prompt, 10)
    with Module.load(folder, device=HOST) as module:
        zero, positions = torch.tensor([0]), torch.tensor([len(prompt)])
        (logits,) = module.execute("prefill", [torch.tensor(prompt), zero, zero])
        on_host = []
        for _ in range(10):
            (tokens,) = module.execute("sample", [logits, *greedy(), positions, zero])
            on_host.append(int(tokens))
            (logits,) = module.execute("decode", [tokens, positions, zero])
            positions += 1
    assert on_device == on_host

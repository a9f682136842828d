"""How fast constants of a program folder reach a CUDA device: `python benchmarks/upload.py [--gib 4] [--json FILE]`."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from device_core import Device, DeviceMemoryBuffer, Module
from device_core.schema.shards import ShardReader
from device_core.testing import MethodBuilder, write_program

CONSTANT_NBYTES = 64 * 1024**2


def write(folder: Path, count: int) -> None:
    method = MethodBuilder("f")
    constants = {f"w{i}": torch.randint(0, 256, (CONSTANT_NBYTES,), dtype=torch.uint8) for i in range(count)}
    out = method.planned("out", "uint8", (1,), device="cuda:0", kind="io")
    for name in constants:
        method.constant(name, "uint8", (CONSTANT_NBYTES,), device="cuda:0")
    write_program(folder, [method.build([out])], constants=constants)


def direct(folder: Path) -> float:
    """Copy with torch alone, straight from the mapped file."""
    start = time.perf_counter()
    copies = []
    for shard in sorted(folder.glob("*.safetensors")):
        with ShardReader(shard) as reader:
            copies += [reader.tensor(name).cuda() for name in sorted(reader.names)]
    torch.cuda.synchronize()
    return time.perf_counter() - start


def loaded(folder: Path) -> float:
    start = time.perf_counter()
    with Module.load(folder):
        torch.cuda.synchronize()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = max(1, int(arguments.gib * 1024**3 / CONSTANT_NBYTES))
    DeviceMemoryBuffer.create(8, Device.parse("cuda:0")).close()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "program"
        write(folder, count)
        direct(folder)
        times = {"direct": min(direct(folder) for _ in range(2)), "module": min(loaded(folder) for _ in range(2))}
    gigabytes = count * CONSTANT_NBYTES / 1e9
    result = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "gigabytes": gigabytes,
        "gigabytes_per_second": {name: gigabytes / seconds for name, seconds in times.items()},
    }
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

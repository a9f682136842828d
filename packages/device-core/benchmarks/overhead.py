"""What the engine adds to the bare instruction list: `python benchmarks/overhead.py [--json FILE]`.

The bare list is the same operators with the same arguments, called in a plain loop; the engine checks arguments, binds
the caller's tensors and returns the outputs.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from device_core import Module
from device_core.schema import types as t
from device_core.testing import MethodBuilder, write_program


def method(name: str, calls: int, sizes: tuple[int, ...]) -> t.Method:
    """Return a chain of additions, each of a state to the result before."""
    built = MethodBuilder(name)
    x = built.input("x", "float32", sizes)
    state = built.state("state", "float32", sizes)
    previous = x
    for i in range(calls):
        kind: t.BufferKind = "io" if i == calls - 1 else "scratch"
        out = built.planned(f"y{i}", "float32", sizes, kind=kind)
        built.call("aten::add.out", previous, state, out=out)
        previous = out
    return built.build([previous])


def best_us(function: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of a call: other work on the machine does not count."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return min(times) * 1e6


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(calls: int, sizes: tuple[int, ...], repeats: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "program"
        state = {"state": t.StateSpec(dtype="float32", sizes=sizes)}
        write_program(folder, [method("f", calls, sizes)], state=state)
        with Module.load(folder) as module:
            x = torch.randn(sizes)
            session = module.new_session()
            linked = session.linked("f", [x])
            bare = linked.instructions.calls
            bare[0][1][0] = x

            def plain() -> None:
                with torch.inference_mode():
                    for function, args, kwargs in bare:
                        function(*args, **kwargs)

            def engine() -> None:
                session.execute("f", [x])

            pairs = []
            for _ in range(7):
                # One after the other, so that a slow spell of the machine hits both.
                bare[0][1][0] = x
                pairs.append((best_us(plain, repeats), best_us(engine, repeats)))
    bare_us, engine_us = (min(values) for values in zip(*pairs, strict=True))
    return {
        "calls": calls, "sizes": sizes, "bare_us": bare_us, "engine_us": engine_us, "overhead": engine_us / bare_us - 1
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(calls, sizes, repeats) for calls, sizes, repeats in [
        (20, (64,), 400), (100, (64,), 200), (600, (64,), 50), (600, (4096,), 30), (100, (65536,), 30),
    ]]  # fmt: skip
    for row in rows:
        print(f"{row['calls']:5} calls of {row['sizes']!s:>9}: bare {row['bare_us']:9.1f} µs, "
              f"engine {row['engine_us']:9.1f} µs, overhead {row['overhead']:+.1%}")  # fmt: skip
    if arguments.json:
        machine = {"cpu": cpu_name(), "python": platform.python_version()}
        command = "python benchmarks/overhead.py"
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "command": command,
            **machine,
            "torch": torch.__version__,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

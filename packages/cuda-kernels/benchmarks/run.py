"""Run the benchmarks: correctness first, then time inside a CUDA graph; prints a table and writes JSON.

python packages/cuda-kernels/benchmarks/run.py [--only SUBSTRING] [--output results.json] [--plot results.svg]
"""

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_kernels
import registry
import torch
import triton
from cuda_kernels.testing import relative_error
from timing import graph_time_us


def measure(work: registry.Work) -> dict[str, Any]:
    """Check and time ours and each competitor; return the row of one shape."""
    expected = work.expected()
    times: dict[str, float | str] = {}
    for name, call in {"ours": work.ours, **work.competitors}.items():
        try:
            error = relative_error(_first(call(0)), expected)
            if not error <= work.bound:
                raise ValueError(f"{name}: expected a relative error of at most {work.bound:g}, got {error:.3g}")
            times[name] = graph_time_us(call, copies=work.copies)
        except Exception as error:
            if name == "ours" or not _ran_out_of_memory(error):
                raise
            times[name] = "OOM"
            torch.cuda.empty_cache()
    return {"floor_us": work.floor_us, "nbytes": work.nbytes, "flops": work.flops, "times_us": times}


def run(only: str) -> Iterator[dict[str, Any]]:
    """Yield one row a benchmark and shape, printing it."""
    for benchmark in registry.all_benchmarks():
        for label, arguments in benchmark.shapes.items():
            if only in f"{benchmark.name}/{label}":
                torch.manual_seed(0)
                row = {"benchmark": benchmark.name, "shape": label, **measure(benchmark.build(**arguments))}
                print(describe(row), flush=True)
                torch.cuda.empty_cache()
                yield row


def describe(row: dict[str, Any]) -> str:
    """Return a row as a line: times in microseconds, and the share of the floor that ours reaches."""
    times = row["times_us"]
    shown = "  ".join(f"{name} {t if isinstance(t, str) else format(t, '.2f')}" for name, t in times.items())
    head = f"{row['benchmark']:<24} {row['shape']:<24} floor {row['floor_us']:8.2f} us  {shown}"
    rates = f"{row['nbytes'] / times['ours'] / 1e6:.2f} TB/s  {row['flops'] / times['ours'] / 1e6:.0f} TFLOP/s"
    return f"{head}  ({row['floor_us'] / times['ours']:.0%} of the floor, {rates})"


def environment() -> dict[str, str]:
    """Return what a figure must be quoted with."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
    }


def _ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether the device's memory ran out, which ends the capture of a graph with another error on top."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error is not None


def _first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple | list) else result


def main() -> None:
    """Parse the command line, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only benchmarks whose NAME/SHAPE contains this")
    parser.add_argument("--output", type=Path, help="JSON file; rewritten after each row")
    parser.add_argument("--plot", type=Path, help="picture of the rows over their token counts")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    cuda_kernels.register()
    document: dict[str, Any] = {"environment": environment(), "rows": []}
    for row in run(options.only):
        document["rows"].append(row)
        if options.output:
            options.output.write_text(json.dumps(document, indent=1))
    if options.plot:
        import plot  # needs matplotlib, which only pictures need

        plot.draw(document, options.plot)


if __name__ == "__main__":
    main()

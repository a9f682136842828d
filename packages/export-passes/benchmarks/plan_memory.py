"""Planning of a 40-layer decoder: time of each pass, planned bytes against the largest sum of live bytes.

`python packages/export-passes/benchmarks/plan_memory.py --json packages/export-passes/benchmarks/plan_memory.json`
"""

import argparse
import json
import platform
import resource
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from device_core import Device
from export_passes import BackendConfig, DevicePartitioner, MethodConfig
from export_passes.emit.emitter import emit_program
from export_passes.graph_pass import run_pass
from export_passes.importer import import_program
from export_passes.memory_plan.naive import naive
from export_passes.memory_plan.planner import plan_memory
from export_passes.pipeline import passes_of
from export_passes.testing import Decoder
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def traced(layers: int, width: int, context: int) -> dict[str, ExportedProgram]:
    with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
        model = Decoder(layers=layers, width=width, heads=width // 128, context=context, vocabulary=32768)
        many, one = torch.zeros(context, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    length = {0: Dim("T", min=2, max=context)}
    return {
        "prefill": export(model, (many, many.clone()), dynamic_shapes=(length, length)),
        "decode": export(model, (one, one.clone())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    methods = traced(options.layers, options.width, options.context)
    keep = MethodConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True)
    config = BackendConfig(partitioner=DevicePartitioner(Device.parse("cuda:0")), default=keep)

    seconds: dict[str, float] = {}

    def timed(name: str, function: Any) -> Any:
        start = time.process_time()
        result = function()
        seconds[name] = round(time.process_time() - start, 3)
        return result

    program = timed("import", lambda: import_program(methods, config))
    for graph_pass in passes_of(config):
        timed(graph_pass.name, lambda graph_pass=graph_pass: run_pass(graph_pass, program))
    plans = timed("memory_plan", lambda: {method.name: plan_memory(method) for method in program.methods})
    emitted, _, _ = timed("emit", lambda: emit_program(program, plans))
    rows = []
    for method in program.methods:
        plan, unshared = plans[method.name], plan_memory(method, planner=naive)
        for buffer, peak, alone in zip(plan.buffers, plan.peaks, unshared.buffers, strict=True):
            rows.append(
                {
                    "method": method.name, "device": buffer.device, "kind": buffer.kind,
                    "planned_nbytes": buffer.nbytes,
                    "peak_nbytes": peak, "over_peak_percent": round(100 * (buffer.nbytes / peak - 1), 3),
                    "naive_nbytes": alone.nbytes, "tensors": len(plan.places),
                }
            )  # fmt: skip
            print(rows[-1])
    result = {
        "command": f"plan_memory.py --layers {options.layers} --width {options.width} --context {options.context}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "instructions": {method.name: len(method.instructions) for method in emitted.methods},
        "cpu_seconds": seconds | {"total": round(sum(seconds.values()), 3)},
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "buffers": rows,
    }
    print(json.dumps(result["cpu_seconds"]), f"{result['peak_resident_mib']} MiB resident")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The planned memory of the 35B-A3B model: at full depth no method needs much more than what is alive at once."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from export_passes import lower
from export_passes.memory_plan.greedy import greedy
from export_passes.memory_plan.plan import Block, Plan, peak_nbytes
from qwen35_moe import exporter
from qwen35_moe.config import parse_config
from qwen35_moe.exporter import ExportOptions
from qwen35_moe.model import ModelFormat
from qwen35_moe.testing import full_config


@pytest.mark.slow
def test_plans_at_full_depth_are_close_to_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    floors: list[int] = []

    def planner(blocks: Sequence[Block], *, alignment: int) -> Plan:
        floors.append(peak_nbytes(blocks))
        return greedy(blocks, alignment=alignment)

    monkeypatch.setattr(exporter, "lower", partial(lower, planner=planner))
    config, options = parse_config(full_config()), ExportOptions(device="cuda:0")
    form = ModelFormat(dtype=torch.bfloat16, int4=options.int4)
    methods = exporter.lower_model(config, form, options, config.vocab_size, lambda *_: None).program.methods
    buffers = [((method.name, buffer.kind), buffer.nbytes) for method in methods for buffer in method.buffers]
    shares = {key: nbytes / floor for (key, nbytes), floor in zip(buffers, floors, strict=True)}
    assert {name for name, _ in shares} == {"prefill", "decode", "sample"}
    assert max(shares.values()) <= 1.05, shares

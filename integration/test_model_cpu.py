"""From a checkpoint that transformers wrote, through every package, to the tokens that transformers chooses."""

from pathlib import Path

import pytest
import torch
from device_core import Module
from qwen35_moe.engine import Engine
from qwen35_moe.exporter import ExportOptions, export_checkpoint
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.testing import small_config
from qwen35_tiny import checkpoint_path
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

GREEDY = SamplingParameters(temperature=0)


@pytest.fixture(scope="module")
def reference() -> Qwen3_5MoeForCausalLM:
    """Return a model with weights as transformers draws them, but larger, so that no two logits are close."""
    config = Qwen3_5MoeTextConfig(**{**small_config(), "initializer_range": 0.3})
    return Qwen3_5MoeForCausalLM(config).eval()


@pytest.fixture(scope="module")
def saved(reference: Qwen3_5MoeForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    reference.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("slots", "chunk"), [(1, 64), (3, 5)], ids=["one-slot", "three-slots-small-chunks"])
def test_greedy_tokens_are_those_of_transformers(
    reference: Qwen3_5MoeForCausalLM, saved: Path, tmp_path: Path, slots: int, chunk: int
) -> None:
    options = ExportOptions(quant="none", max_context=96, slots=slots, chunk=chunk)
    export_checkpoint(saved, tmp_path / "program", options)
    prompt = torch.randint(0, 301, (23,))
    expected = reference.generate(prompt[None], max_new_tokens=64, do_sample=False, eos_token_id=None)[0, 23:]
    with Engine.load(tmp_path / "program") as engine:
        given = list(
            engine.generate(prompt.tolist(), GREEDY, max_new_tokens=64, slot=slots - 1, stop_ids=())
        )  # fmt: skip
    assert given == expected.tolist()


@pytest.mark.parametrize(
    ("options", "cosine"),
    [
        (ExportOptions(quant="none", max_context=128), 0.999),
        (ExportOptions(group_size=32, max_context=128), 0.9),
        (ExportOptions(group_size=32, max_context=128, activations="int8"), 0.9),
    ],
    ids=["dense", "int4", "int4-int8"],
)
def test_tiny_model_is_near_transformers_in_bfloat16(tmp_path: Path, options: ExportOptions, cosine: float) -> None:
    export_checkpoint(checkpoint_path(), tmp_path / "program", options)
    model = Qwen3_5MoeForCausalLM.from_pretrained(checkpoint_path(), dtype=torch.bfloat16).eval()
    tokens = torch.randint(0, model.config.vocab_size, (100,))
    with Module.load(tmp_path / "program") as module, torch.no_grad():
        expected = model(tokens[None]).logits[0, -1].float()
        (given,) = module.execute("prefill", (tokens, torch.tensor([0]), torch.tensor([0])))
    assert float(torch.nn.functional.cosine_similarity(given[0], expected, dim=0)) >= cosine


def test_program_for_a_gpu_runs_on_the_cpu(saved: Path, tmp_path: Path) -> None:
    options = {"group_size": 32, "max_context": 64, "activations": "float"}
    export_checkpoint(saved, tmp_path / "cpu", ExportOptions(**options, device="cpu"))
    export_checkpoint(saved, tmp_path / "cuda", ExportOptions(**options, device="cuda:0"))
    prompt, outputs = torch.randint(0, 301, (20,)).tolist(), []
    for name in ("cpu", "cuda"):
        with Engine.load(tmp_path / name, device="cpu") as engine:
            outputs.append(list(engine.generate(prompt, GREEDY, max_new_tokens=10, stop_ids=())))
    assert outputs[0] == outputs[1]

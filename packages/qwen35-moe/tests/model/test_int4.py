"""The int4 forms of the model against the dense model with the dequantized weights."""

from pathlib import Path

import pytest
import torch
from cuda_kernels import int4
from qwen35_moe.checkpoint import load_decoder
from qwen35_moe.model import Decoder, Int4


def dequantized(folder: Path, group_size: int) -> Decoder:
    """Return the dense model whose matrices are those of the int4 model, dequantized."""
    dense = load_decoder(folder)
    weights = dict(load_decoder(folder, int4=Int4(group_size=group_size)).named_parameters())
    for name, parameter in dense.named_parameters():
        scales = weights.get(name.removesuffix(".weight") + ".scales", weights.get(f"{name}_scales"))
        if scales is not None:
            parameter.copy_(int4.dequantize(weights[name], scales, dtype=parameter.dtype))
    return dense


def logits(decoder: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    zero = torch.tensor([0])
    with torch.no_grad():
        prompt = decoder.logits(decoder.prefill(tokens, zero, zero))
        step = decoder.logits(decoder.decode(tokens[:1], torch.tensor([len(tokens)]), zero))
    return torch.cat((prompt, step))


@pytest.mark.parametrize(("activations", "bound"), [("float", 0.0), ("int8", 8e-2)])
def test_int4_model_equals_the_dequantized_one(small_checkpoint: Path, activations: str, bound: float) -> None:
    tokens = torch.randint(0, 301, (33,), generator=torch.Generator().manual_seed(1))
    expected = logits(dequantized(small_checkpoint, 32), tokens)
    given = logits(load_decoder(small_checkpoint, int4=Int4(group_size=32, activations=activations)), tokens)
    assert float((given - expected).norm() / expected.norm()) <= bound

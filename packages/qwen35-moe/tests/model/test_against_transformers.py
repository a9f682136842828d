"""The eager model against the reference implementation in transformers, on the same checkpoint in float32."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen35_moe.checkpoint import load_decoder
from qwen35_moe.model import Decoder
from qwen35_moe.testing import small_config, write_checkpoint
from transformers import Qwen3_5MoeForCausalLM

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Hv4-Hk2-V301": {},
    "V257-tied-attention-first": {
        "vocab_size": 257,
        "tie_word_embeddings": True,
        "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
        "num_key_value_heads": 1,
        "linear_num_value_heads": 2,
        "shared_expert_intermediate_size": 32,
    },
    "Hv8-Hk2-E5-top2": {
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "head_dim": 64,
        "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
        "shared_expert_intermediate_size": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    reference: Qwen3_5MoeForCausalLM
    decoder: Decoder


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("pair"), small_config(**request.param))
    reference = Qwen3_5MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        yield Pair(reference=reference, decoder=load_decoder(folder, context=128))


def tokens_of(pair: Pair, count: int) -> torch.Tensor:
    return torch.randint(0, pair.decoder.config.vocab_size, (count,))


def relative_error(given: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative norm of the error over rows."""
    return float(((given - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def at(position: int) -> torch.Tensor:
    return torch.tensor([position])


def test_logits_of_a_prompt_at_every_position(pair: Pair) -> None:
    tokens = tokens_of(pair, 100)
    logits = pair.decoder.logits(pair.decoder.prefill(tokens, at(0), at(0)))
    assert relative_error(logits, pair.reference(tokens[None]).logits[0]) < 1e-4


def test_logits_of_decoding_at_every_position(pair: Pair) -> None:
    tokens, decoder = tokens_of(pair, 60), pair.decoder
    decoder.prefill(tokens[:30], at(0), at(0))
    rows = [decoder.logits(decoder.decode(tokens[i : i + 1], at(i), at(0))) for i in range(30, 60)]
    assert relative_error(torch.cat(rows), pair.reference(tokens[None]).logits[0, 30:]) < 1e-4


def test_greedy_tokens(pair: Pair) -> None:
    prompt, decoder = tokens_of(pair, 7), pair.decoder
    expected = pair.reference.generate(prompt[None], max_new_tokens=64, do_sample=False, eos_token_id=None)[0, 7:]
    hidden = decoder.prefill(prompt, at(0), at(0))[-1:]
    given = [int(decoder.logits(hidden).argmax())]
    for position in range(7, 70):
        hidden = decoder.decode(torch.tensor(given[-1:]), at(position), at(0))
        given.append(int(decoder.logits(hidden).argmax()))
    assert given == expected.tolist()

"""The shape of the tiny model: every kind of layer of the family, in under eight million parameters."""

import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

CONTEXT = 4096


def text_config(tokenizer: Tokenizer) -> Qwen3_5MoeTextConfig:
    """Return the configuration; every contraction is a multiple of 128, the largest group of the int4 format."""
    return Qwen3_5MoeTextConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
                         "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        bos_token_id=None,
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    )  # fmt: skip


def build(tokenizer: Tokenizer, seed: int) -> Qwen3_5MoeForCausalLM:
    """Return a float32 model with random weights; the same seed gives the same weights."""
    torch.manual_seed(seed)
    model = Qwen3_5MoeForCausalLM(text_config(tokenizer))
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            open_gates(layer.linear_attn)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        eos_token_id=[tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")],
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    return model


@torch.no_grad()
def open_gates(layer: nn.Module) -> None:
    """Let the heads of a delta net remember for ten to a thousand tokens at first.

    A fresh layer of transformers forgets nearly all in one token, and from there gradients do not lead out.
    """
    layer.A_log.uniform_(1.0, 4.0).log_()
    step = layer.dt_bias.uniform_(math.log(1e-3), math.log(3e-2)).exp_()
    step.add_(torch.log(-torch.expm1(-step)))  # the inverse of softplus


def save(model: Qwen3_5MoeForCausalLM, folder: Path) -> None:
    """Write ``config.json``, ``generation_config.json`` and ``model.safetensors`` in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(folder)

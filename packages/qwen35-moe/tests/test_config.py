"""The configuration: both forms of config.json, and one clear error for everything else."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from qwen35_moe.config import parse_config, read_config
from qwen35_moe.errors import ConfigError
from qwen35_moe.testing import small_config

REQUIRED = [
    key
    for key in small_config()
    if key not in ("architectures", "model_type", "hidden_act", "attention_bias", "eos_token_id", "dtype")
]


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {**text, "model_type": "qwen3_5_moe_text"},
        **outer,
    }


def test_text_config_may_be_nested() -> None:
    assert parse_config(nested(small_config())) == parse_config(small_config())


def test_tied_embeddings_are_read_from_the_outer_document_where_the_nested_one_is_silent() -> None:
    text = small_config()
    del text["tie_word_embeddings"]
    assert parse_config(nested(text, tie_word_embeddings=True)).tie_word_embeddings


def test_multi_axis_rotary_keys_are_accepted() -> None:
    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    config = parse_config(small_config(rope_parameters=rope, head_dim=256))
    assert (config.rotary_dim, config.rope_theta) == (64, 1e7)


def test_interval_gives_the_layer_types() -> None:
    document = small_config(full_attention_interval=2)
    del document["layer_types"]
    assert parse_config(document).layer_types == ("linear_attention", "full_attention") * 2


@pytest.mark.parametrize(
    ("width", "experts"), [(32, 1), (48, 2), (64, 2), (1, 1)], ids=["equal", "padded", "double", "one"]
)
def test_shared_expert_fills_rows_of_the_table(width: int, experts: int) -> None:
    assert parse_config(small_config(shared_expert_intermediate_size=width)).shared_experts == experts


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (7, (7,)), ([7, 9], (7, 9))], ids=["none", "one", "several"])
def test_end_of_sequence_ids(value: object, ids: tuple[int, ...]) -> None:
    assert parse_config(small_config(eos_token_id=value)).eos_token_ids == ids


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_named(key: str) -> None:
    document = small_config()
    del document[key]
    with pytest.raises(ConfigError, match=f"missing key '{key}'"):
        parse_config(document)


@pytest.mark.parametrize("key", ["rope_type", "rope_theta", "partial_rotary_factor"])
def test_missing_rotary_key_is_named(key: str) -> None:
    rope = dict(small_config()["rope_parameters"])
    del rope[key]
    with pytest.raises(ConfigError, match=f"rope_parameters: missing key '{key}'"):
        parse_config(small_config(rope_parameters=rope))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "LlamaForCausalLM.*not supported"),
        ({"architectures": None, "model_type": "qwen3"}, "model_type 'qwen3'.*not supported"),
        ({"hidden_size": 0}, "hidden_size: expected a positive integer, got 0"),
        ({"hidden_size": "64"}, "hidden_size: expected int, got '64'"),
        ({"num_experts": True}, "num_experts: expected a positive integer, got True"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a positive, finite number"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps: expected a positive, finite number, got inf"),
        ({"architectures": 5}, "architectures: expected a list of names, got 5"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias: expected False, got True"),
        ({"attn_output_gate": False}, "attn_output_gate: expected True"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected num_hidden_layers 4 entries, got 1"),
        ({"layer_types": ["sliding_attention"] * 4}, r"layer_types\[0\]: expected.*got 'sliding_attention'"),
        ({"num_key_value_heads": 3}, "num_attention_heads: expected a multiple of num_key_value_heads 3, got 4"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads: expected a multiple"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most num_experts 8, got 9"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type: expected 'default', got 'yarn'"),
        ({"eos_token_id": "end"}, "eos_token_id: expected token ids"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized already"),
        ({"text_config": []}, "text_config: expected a JSON object, got list"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_value_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(small_config(**changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "found none"), ("{", "not a JSON document"), ("[]", "expected a JSON object")],
    ids=["missing", "broken", "list"],
)
def test_bad_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_config(tmp_path / "nowhere")


def test_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    assert read_config(tmp_path).hidden_size == 64

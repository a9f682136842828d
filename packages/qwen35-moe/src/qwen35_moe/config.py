"""The model's configuration, read from a Hugging Face `config.json`; a missing key is an error, never a default."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qwen35_moe.errors import ConfigError
from qwen35_moe.files import check_folder, parse_object

LayerType = Literal["linear_attention", "full_attention"]

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
_OUTER_MODEL_TYPE = "qwen3_5_moe"
_TEXT_MODEL_TYPE = "qwen3_5_moe_text"
_LAYER_TYPES = ("linear_attention", "full_attention")
# What the code computes whatever the configuration says: a checkpoint that wants something else is refused.
_FIXED = {"hidden_act": "silu", "attention_bias": False, "attn_output_gate": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of the text model, under the names of `config.json`; `layer_types` has one entry a layer."""

    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def shared_experts(self) -> int:
        """Return how many rows of the expert table the shared expert fills: its width over an expert's, rounded up."""
        return -(-self.shared_expert_intermediate_size // self.moe_intermediate_size)

    @property
    def key_dim(self) -> int:
        """Return the width of all key heads of a delta-net layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Return the width of all value heads of a delta-net layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Return the channels of the convolution of a delta-net layer: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim


def read_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`. Raises ConfigError where it is missing, no JSON, or not of this family."""
    path = folder / "config.json"
    check_folder(folder, ConfigError)
    if not path.is_file():
        raise ConfigError(f"{folder}: expected a checkpoint folder with a config.json, found none")
    return parse_config(parse_object(path.read_bytes(), ConfigError, where=path), where=str(path))


def parse_config(document: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """Parse the outer document, in which the text model's keys may be nested under `text_config`."""
    _check_architecture(document, where)
    nested = document.get("text_config")
    keys = _Keys(document if nested is None else nested, where if nested is None else f"{where}: text_config")
    for key, value in _FIXED.items():
        if keys.get(key, value) != value:
            raise ConfigError(f"{keys.where}: {key}: expected {value!r}, got {keys.get(key, value)!r}")
    rope = _Keys(keys.require("rope_parameters", dict), f"{keys.where}: rope_parameters")
    if rope.require("rope_type", str) != "default":
        raise ConfigError(f"{rope.where}: rope_type: expected 'default', got {rope.get('rope_type', None)!r}")
    head_dim = keys.size("head_dim")
    tied_keys = keys if "tie_word_embeddings" in keys.document else _Keys(document, where)
    config = ModelConfig(
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        layer_types=_layer_types(keys),
        num_attention_heads=keys.size("num_attention_heads"),
        num_key_value_heads=keys.size("num_key_value_heads"),
        head_dim=head_dim,
        linear_num_key_heads=keys.size("linear_num_key_heads"),
        linear_num_value_heads=keys.size("linear_num_value_heads"),
        linear_key_head_dim=keys.size("linear_key_head_dim"),
        linear_value_head_dim=keys.size("linear_value_head_dim"),
        linear_conv_kernel_dim=keys.size("linear_conv_kernel_dim"),
        num_experts=keys.size("num_experts"),
        num_experts_per_tok=keys.size("num_experts_per_tok"),
        moe_intermediate_size=keys.size("moe_intermediate_size"),
        shared_expert_intermediate_size=keys.size("shared_expert_intermediate_size"),
        max_position_embeddings=keys.size("max_position_embeddings"),
        rms_norm_eps=keys.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta"),
        rotary_dim=int(head_dim * rope.number("partial_rotary_factor")),
        tie_word_embeddings=tied_keys.require("tie_word_embeddings", bool),
        eos_token_ids=_token_ids(keys.get("eos_token_id", None), keys.where),
    )
    _check_consistency(config, keys.where)
    return config


class _Keys:
    """The keys of one JSON object, read with their types; `where` names the object in messages."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise ConfigError(f"{where}: expected a JSON object, got {type(document).__name__}")
        self.document: dict[str, Any] = document
        self.where = where

    def get(self, key: str, default: object) -> Any:
        return self.document.get(key, default)

    def require(self, key: str, kind: type) -> Any:
        if key not in self.document:
            raise ConfigError(f"{self.where}: missing key {key!r}")
        value = self.document[key]
        if not isinstance(value, kind):
            raise ConfigError(f"{self.where}: {key}: expected {kind.__name__}, got {value!r}")
        return value

    def size(self, key: str) -> int:
        value: int = self.require(key, int)
        if isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.where}: {key}: expected a positive integer, got {value!r}")
        return value

    def number(self, key: str) -> float:
        value = self.require(key, object)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"{self.where}: {key}: expected a positive, finite number, got {value!r}")
        return float(value)


def _check_architecture(document: Mapping[str, Any], where: str) -> None:
    names, model_type = document.get("architectures"), document.get("model_type")
    if not isinstance(names, list | None):
        raise ConfigError(f"{where}: architectures: expected a list of names, got {names!r}")
    named = [name for name in names or () if name in ARCHITECTURES]
    if not named and (names or model_type not in (_OUTER_MODEL_TYPE, _TEXT_MODEL_TYPE)):
        given = ", ".join(map(str, names)) if names else "none named"
        raise ConfigError(
            f"{where}: architecture {given} (model_type {model_type!r}) is not supported; "
            f"expected {' or '.join(ARCHITECTURES)}"
        )
    if "quantization_config" in document or "quantization_config" in (document.get("text_config") or {}):
        raise ConfigError(
            f"{where}: quantization_config: this checkpoint is quantized already; expected bfloat16 or float32 weights"
        )


def _layer_types(keys: _Keys) -> tuple[LayerType, ...]:
    layers = keys.size("num_hidden_layers")
    if "layer_types" not in keys.document:
        if "full_attention_interval" not in keys.document:
            raise ConfigError(f"{keys.where}: missing key 'layer_types' (or 'full_attention_interval')")
        interval = keys.size("full_attention_interval")
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))
    types = keys.require("layer_types", list)
    if len(types) != layers:
        raise ConfigError(f"{keys.where}: layer_types: expected num_hidden_layers {layers} entries, got {len(types)}")
    for layer, kind in enumerate(types):
        if kind not in _LAYER_TYPES:
            raise ConfigError(f"{keys.where}: layer_types[{layer}]: expected {' or '.join(_LAYER_TYPES)}, got {kind!r}")
    return tuple(types)


def _token_ids(value: object, where: str) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigError(f"{where}: eos_token_id: expected token ids, got {value!r}")
    return tuple(ids)


def _check_consistency(config: ModelConfig, where: str) -> None:
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if getattr(config, many) % getattr(config, few):
            raise ConfigError(f"{where}: {many}: expected a multiple of {few} {getattr(config, few)}, "
                              f"got {getattr(config, many)}")  # fmt: skip
    if config.num_experts_per_tok > config.num_experts:
        raise ConfigError(f"{where}: num_experts_per_tok: expected at most num_experts {config.num_experts}, "
                          f"got {config.num_experts_per_tok}")  # fmt: skip
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        raise ConfigError(f"{where}: partial_rotary_factor: expected an even number of rotated elements up to head_dim "
                          f"{config.head_dim}, got {config.rotary_dim}")  # fmt: skip

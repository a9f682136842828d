"""The small files of a checkpoint that travel with its program, and what an export reads in them."""

from collections.abc import Mapping
from pathlib import Path

from qwen35_moe.config import ModelConfig
from qwen35_moe.errors import ExportError
from qwen35_moe.files import parse_object

ASSETS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def read_assets(checkpoint: Path) -> dict[str, bytes]:
    """Return the content of those files that a checkpoint folder has."""
    return {name: (checkpoint / name).read_bytes() for name in ASSETS if (checkpoint / name).is_file()}


def sampled_vocab_size(config: ModelConfig, assets: Mapping[str, bytes]) -> int:
    """Return the number of ids that the tokenizer knows: logits past them belong to no text. All, without one.

    Raises ExportError where `tokenizer.json` is no JSON object, or its vocabulary is no map from text to id.
    """
    if "tokenizer.json" not in assets:
        return config.vocab_size
    document = parse_object(assets["tokenizer.json"], ExportError, where="tokenizer.json")
    try:
        ids = [*document.get("model", {}).get("vocab", {}).values()]
        ids += [token["id"] for token in document.get("added_tokens", [])]
        largest = max(ids, default=config.vocab_size - 1)
    except (AttributeError, KeyError, TypeError) as error:
        raise ExportError(f"tokenizer.json: expected a vocabulary of text to id: {error!r}") from error
    if not _is_id(largest):
        raise ExportError(f"tokenizer.json: expected ids from 0 on, got {largest!r}")
    return min(config.vocab_size, 1 + largest)


def stop_ids(config: ModelConfig, assets: Mapping[str, bytes]) -> tuple[int, ...]:
    """Return the ids that end an output: those of generation_config.json and of config.json.

    Raises ExportError where those of `generation_config.json` are no token ids.
    """
    name = "generation_config.json"
    given = parse_object(assets[name], ExportError, where=name).get("eos_token_id") if name in assets else None
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(map(_is_id, ids)):
        raise ExportError(f"{name}: eos_token_id: expected token ids, got {given!r}")
    return tuple(dict.fromkeys((*ids, *config.eos_token_ids)))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

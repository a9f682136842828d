"""The small files of a checkpoint: the vocabulary's size, the ids that end an output, and one error for the rest."""

import json
from typing import Any

import pytest
from qwen35_moe.assets import sampled_vocab_size, stop_ids
from qwen35_moe.config import parse_config
from qwen35_moe.errors import ExportError
from qwen35_moe.testing import small_config

CONFIG = parse_config(small_config(eos_token_id=7))


def asset(name: str, document: Any) -> dict[str, bytes]:
    return {name: json.dumps(document).encode()}


@pytest.mark.parametrize(
    ("document", "size"),
    [
        ({"model": {"vocab": {"a": 0, "b": 9}}}, 10),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 20}]}, 21),
        ({"model": {"vocab": {"a": 5000}}}, 301),
        ({}, 301),
    ],
    ids=["vocabulary", "added-token", "more-than-the-model", "nothing"],
)
def test_sampled_vocabulary_ends_with_the_tokenizers(document: Any, size: int) -> None:
    assert sampled_vocab_size(CONFIG, asset("tokenizer.json", document)) == size


def test_without_a_tokenizer_every_id_is_sampled() -> None:
    assert sampled_vocab_size(CONFIG, {}) == 301


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"model": []},
        {"model": {"vocab": [["a", -1.5]]}},
        {"model": {"vocab": {"a": "b"}}},
        {"model": {"vocab": {"a": -7}}},
        {"added_tokens": 5},
        {"added_tokens": [{}]},
    ],
    ids=str,
)
def test_tokenizer_of_another_form_is_refused(document: Any) -> None:
    with pytest.raises(ExportError, match=r"tokenizer\.json: expected"):
        sampled_vocab_size(CONFIG, asset("tokenizer.json", document))


@pytest.mark.parametrize(
    ("given", "ids"), [(None, (7,)), (3, (3, 7)), ([3, 7], (3, 7)), ([], (7,))], ids=["none", "one", "list", "empty"]
)
def test_stop_ids_of_both_files(given: Any, ids: tuple[int, ...]) -> None:
    assert stop_ids(CONFIG, asset("generation_config.json", {"eos_token_id": given})) == ids


@pytest.mark.parametrize("given", ["x", [1, "x"], True, -1, 1.0], ids=str)
def test_stop_ids_of_another_form_are_refused(given: Any) -> None:
    with pytest.raises(ExportError, match="eos_token_id: expected token ids"):
        stop_ids(CONFIG, asset("generation_config.json", {"eos_token_id": given}))

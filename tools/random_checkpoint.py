"""Write a checkpoint, or a quantized program, with random weights of any Qwen3.5-MoE configuration.

`python tools/random_checkpoint.py 35B-A3B --layers 4 --output DIR` writes a sharded bfloat16 checkpoint in Hugging Face
layout; with `--program`, directly the program folder that an export of it would give, weights drawn as int4.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from qwen35_moe.exporter import ExportOptions
from qwen35_moe.random_program import write_random_program
from qwen35_moe.testing import full_config, write_checkpoint


def main() -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a config.json, or the preset 35B-A3B")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, help="keep the first layers only")
    parser.add_argument("--shards", type=int, default=8, help="files of a checkpoint")
    parser.add_argument("--program", action="store_true", help="write a program, not a checkpoint")
    parser.add_argument("--quant", choices=("int4", "none"), default="int4")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=4096)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    document = _document(arguments.config, arguments.layers)
    if arguments.program:
        options = ExportOptions(
            quant=arguments.quant,
            group_size=arguments.group_size,
            max_context=arguments.max_context,
            device=arguments.device,
        )
        write_random_program(arguments.output, document, options)
    else:
        write_checkpoint(
            arguments.output,
            document,
            dtype=torch.bfloat16,
            prefix="model.language_model.",
            shards=arguments.shards,
        )


def _document(config: str, layers: int | None) -> dict[str, Any]:
    if config == "35B-A3B":
        return full_config(layers=layers or 40)
    document: dict[str, Any] = json.loads(Path(config).read_text(encoding="utf-8"))
    if layers is not None:
        text = document.get("text_config", document)
        text["num_hidden_layers"] = layers
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][:layers]
    return document


if __name__ == "__main__":
    main()

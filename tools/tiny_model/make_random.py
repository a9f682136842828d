"""Write a checkpoint of the tiny model's shape with random weights.

Run as ``python -m tools.tiny_model.make_random FOLDER``.
"""

import argparse
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from tools.tiny_model.architecture import build, save
from tools.tiny_model.corpus import TEMPLATE_FILE

ASSETS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_random(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint, tokenizer and chat template included."""
    folder.mkdir(parents=True, exist_ok=True)
    source = TEMPLATE_FILE.parent
    save(build(Tokenizer.from_file(str(source / "tokenizer.json")), seed), folder)
    if folder.resolve() != source:
        for name in ASSETS:
            shutil.copyfile(source / name, folder / name)


def main() -> None:
    """Parse the command line and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_random(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()

"""Try random programs by seed: `python -m export_passes.testing --seeds 50000` prints how many were equal."""

import argparse
import random
import tempfile
from pathlib import Path

import torch

from export_passes.testing.fake_devices import compare_on_fakes
from export_passes.testing.random_graphs import random_program


def main() -> None:
    """Compare programs until one differs."""
    parser = argparse.ArgumentParser(prog="python -m export_passes.testing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many programs to try")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with tempfile.TemporaryDirectory() as folder:
        for count, seed in enumerate(seeds, start=1):
            try:
                compare_on_fakes(random_program(random.Random(seed)), Path(folder) / "program")
            except Exception as error:
                error.add_note(f"random program of seed {seed}")
                raise
            if count % 1000 == 0 or count == len(seeds):
                print(f"{count} random programs equal eager torch", flush=True)


if __name__ == "__main__":
    main()

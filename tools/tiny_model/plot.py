"""The loss plot of a training run, from its log: ``python -m tools.tiny_model.plot log.json loss.png``."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def plot_loss(log: Mapping[str, Any], path: Path) -> None:
    """Draw training loss over steps, with the generator's entropy as the floor and the held-out loss as a mark."""
    curve = log["curve"]
    held_out = log["evaluation"]["held_out"]["all"]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot([point["step"] for point in curve], [point["loss"] for point in curve], lw=1, label="training loss")
    axes.axhline(
        held_out["entropy"], color="black", ls="--", lw=1, label=f"entropy of the text {held_out['entropy']:.4f}"
    )
    axes.plot(curve[-1]["step"], held_out["loss"], "o", label=f"held-out loss {held_out['loss']:.4f}")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("nats a token")
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw the plot of a log file again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    plot_loss(json.loads(arguments.log.read_text(encoding="utf-8")), arguments.picture)


if __name__ == "__main__":
    main()

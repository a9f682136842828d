"""Draw benchmark results: for each operator, time and share of the floor over the token count.

python packages/cuda-kernels/benchmarks/plot.py results.json results.svg
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_TOKENS = re.compile(r"^T(\d+)(?:-(.*))?$")

Series = dict[str, list[tuple[int, float]]]


def series(document: dict[str, Any]) -> dict[str, tuple[Series, Series]]:
    """Return, by operator and the rest of its shape, times and shares of the floor of each contender over tokens."""
    found: dict[str, tuple[Series, Series]] = defaultdict(lambda: (defaultdict(list), defaultdict(list)))
    for row in document["rows"]:
        match = _TOKENS.match(row["shape"])
        if match is None:
            continue
        times, shares = found[f"{row['benchmark']} {match[2] or ''}".strip()]
        for name, time_us in row["times_us"].items():
            if not isinstance(time_us, str):
                times[name].append((int(match[1]), time_us))
                shares[name].append((int(match[1]), row["floor_us"] / time_us))
        times["floor"].append((int(match[1]), row["floor_us"]))
    return {name: pair for name, pair in found.items() if len(pair[0]["floor"]) > 1}


def draw(document: dict[str, Any], path: Path) -> None:
    """Write a picture with one row an operator: time on the left, share of the floor on the right."""
    groups = series(document)
    if not groups:
        raise ValueError("results: expected rows of one operator at several token counts, got none")
    figure = Figure(figsize=(12, 3.6 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False)
    for (name, (times, shares)), (left, right) in zip(groups.items(), axes, strict=True):
        for axis, lines, label in ((left, times, "µs"), (right, shares, "share of the floor")):
            for contender, points in lines.items():
                tokens, values = zip(*sorted(points), strict=True)
                style = {"color": "black", "linestyle": ":"} if contender == "floor" else {"marker": "o"}
                axis.plot(tokens, values, label=contender, **style)
            axis.set(title=name, xlabel="tokens", ylabel=label, xscale="log")
        left.set_yscale("log")
        left.legend()
        right.set_ylim(0, 1)
    environment = document["environment"]
    figure.suptitle(f"{environment['device']}, torch {environment['torch']}, {environment['date']}")
    figure.savefig(path)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

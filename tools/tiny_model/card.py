"""Bring the figures of the model card up to date with the JSON results beside it.

Run as ``python -m tools.tiny_model.card``; ``--check`` changes nothing and exits with 1 where the card is out of date.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "packages" / "qwen35-tiny"
CARD = PACKAGE / "MODEL_CARD.md"
TRAINING = PACKAGE / "results" / "training.json"
PERPLEXITY = PACKAGE / "results" / "perplexity.json"
BEGIN, END = "<!-- figures: made by tools/tiny_model/card.py -->", "<!-- end of figures -->"


def figures(training: Mapping[str, Any], perplexity: Mapping[str, Any] | None) -> str:
    """Return the tables of the card."""
    evaluation, environment = training["evaluation"], training["environment"]
    curve = training["curve"]
    lines = [
        f"Trained {environment['date'][:10]} on one {environment['device']}, torch {environment['torch']}: "
        f"{curve[-1]['step']:,} steps of {training['options']['rows']} rows of {training['options']['length']} tokens "
        f"in {curve[-1]['seconds'] / 60:.1f} minutes.",
        "",
        "| held-out texts | tokens | loss, nats a token | entropy of the generator | above it |",
        "|---|---|---|---|---|",
    ]
    for kind, row in evaluation["held_out"].items():
        if isinstance(row, Mapping):
            excess = f"{100 * row['excess']:+.2f} %"
            lines.append(f"| {kind} | {row['tokens']:,} | {row['loss']:.4f} | {row['entropy']:.4f} | {excess} |")
    stories, answers = evaluation["stories"], evaluation["answers"]
    lines += [
        "",
        f"Of {stories['of']} stories sampled at temperature 0.8, {stories['passed']} are parsed by the grammar, names, "
        f"places and objects included ({stories['distinct']} are different). "
        f"Of {answers['of']} questions, {answers['right']} are answered right by greedy decoding:",
        "",
        "| form | right |",
        "|---|---|",
        *(f"| {form} | {right.replace('/', ' of ')} |" for form, right in answers["forms"].items()),
    ]
    if perplexity is not None:
        lines += ["", *_forms(perplexity)]
    return "\n".join(lines)


def _forms(perplexity: Mapping[str, Any]) -> list[str]:
    rows = ["| form of the matrices | loss, nats a token | above unquantized |", "|---|---|---|"]
    for form, row in perplexity["forms"].items():
        rows.append(f"| {form} | {row['loss']:.4f} | {100 * row['above']:+.2f} % |")
    tokens = next(iter(perplexity["forms"].values()))["tokens"]
    return [
        f"Before and after quantization, `qwen35-moe perplexity` on `{perplexity['text']}`, {tokens:,} tokens:",
        "",
        *rows,
    ]


def updated(card: str) -> str:
    """Return the card with its figures replaced by those of the results."""
    training = json.loads(TRAINING.read_text(encoding="utf-8"))
    perplexity = json.loads(PERPLEXITY.read_text(encoding="utf-8")) if PERPLEXITY.is_file() else None
    head, _, rest = card.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{figures(training, perplexity)}\n\n{END}{tail}"


def main() -> int:
    """Update the card, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = CARD.read_text(encoding="utf-8")
    if not check:
        CARD.write_text(updated(text), encoding="utf-8")
    return 1 if check and updated(text) != text else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Bring the measured table and plot of the README up to date with `packages/qwen35-moe/benchmarks/results/*.json`.

Each file is what `qwen35-moe bench --json` wrote. `python tools/results_table.py` rewrites what stands between the
markers in the READMEs, and the plot; `--check` only says whether they are up to date, by exit code.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "packages" / "qwen35-moe" / "benchmarks" / "results"
READMES = (ROOT / "README.md", ROOT / "packages" / "qwen35-moe" / "README.md")
PLOT = ROOT / "docs" / "images" / "speed.svg"
BEGIN, END = "<!-- results: made by tools/results_table.py -->", "<!-- end of results -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Update, or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where something is out of date")
    check = parser.parse_args(arguments).check
    documents = read_results(RESULTS)
    stale = []
    for path in READMES:
        text = path.read_text(encoding="utf-8")
        updated = replace_block(text, table(documents))
        if updated != text:
            stale.append(path)
            if not check:
                path.write_text(updated, encoding="utf-8")
    if not check and documents:
        plot(documents, PLOT)
    print("\n".join(f"{'out of date' if check else 'updated'}: {path.relative_to(ROOT)}" for path in stale))
    return 1 if check and stale else 0


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the documents in the order of their dates, the latest first."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(documents, key=lambda document: document["date"], reverse=True)


def table(documents: Sequence[dict[str, Any]]) -> str:
    """Return one Markdown table a document, with device, form, date and command below it."""
    return "\n\n".join(map(_table, documents))


def _table(document: dict[str, Any]) -> str:
    memory = "" if document["peak_nbytes"] is None else f", peak memory {document['peak_nbytes'] / 1e9:.1f} GB"
    versions = ", ".join(f"{name} {number}" for name, number in sorted(document["versions"].items()))
    return "\n".join(
        (
            "| test | tok/s | slowest to fastest | first token | moved per token | of the bandwidth |",
            "|---|---|---|---|---|---|",
            *map(_line, document["measurements"]),
            "",
            f"{document['device']}, {document['quant']}{memory}; {document['date'][:10]}; {versions};",
            *(f"`{document[key]}`" for key in ("program", "command") if key in document),
        )
    )


def _line(row: dict[str, Any]) -> str:
    first = "" if row["first_token_s"] is None else f"{row['first_token_s'] * 1e3:.1f} ms"
    moved = "" if row["nbytes_per_token"] is None else f"{row['nbytes_per_token'] / 1e6:,.0f} MB"
    share = "" if row["bandwidth_share"] is None else f"{row['bandwidth_share']:.0%}"
    spread = f"{row['slowest']:,.0f} to {row['fastest']:,.0f}"
    return f"| {row['name']} | **{row['tokens_per_s']:,.0f}** | {spread} | {first} | {moved} | {share} |"


def replace_block(text: str, block: str) -> str:
    """Return `text` with `block` between the markers; text without markers stays as it is."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{block}\n{end}{after}" if begin and end else text


def plot(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw prompt speed over length and output speed over context."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "results"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axes, kind, key, label in ((left, "pp", "tokens", "prompt tokens"), (right, "tg", "context", "context")):
        for document in documents:
            rows = sorted((row[key], row["tokens_per_s"]) for row in document["measurements"] if row["kind"] == kind)
            axes.plot(*zip(*rows, strict=True), marker="o", label=f"{document['device']}, {document['quant']}")
        axes.set(xlabel=label, ylabel="tokens/s", ylim=(0, None), title={"pp": "prompt", "tg": "output"}[kind])
        axes.grid(alpha=0.3)
    right.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    raise SystemExit(main())

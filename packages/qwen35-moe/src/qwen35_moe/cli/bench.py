"""``qwen35-moe bench``: the speed of prompts and of output."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qwen35_moe.benchmark import Measurement
    from qwen35_moe.engine import Engine
    from qwen35_moe.profiling import OperatorShare


def bench(
    model: Annotated[
        Path | None, typer.Argument(help="Program or checkpoint folder; by default the tiny model.", show_default=False)
    ] = None,
    prompts: Annotated[str, typer.Option("-p", "--prompts", help="Lengths of prompts.")] = "512,1341",
    new_tokens: Annotated[int, typer.Option("-n", "--new-tokens", help="Tokens of an output.")] = 128,
    contexts: Annotated[str, typer.Option("--context", help="Tokens before the output.")] = "0,1341",
    repeats: Annotated[int, typer.Option(help="Runs of each row; the median counts.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where a decode step goes, by operator; GPU.")
    ] = False,
    profile_plot: Annotated[Path | None, typer.Option(help="Draw the profile as SVG; implies --profile.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to a file, too.")] = None,
) -> None:
    """Measure prompt (pp) and output (tg) speed, with random tokens."""
    from qwen35_moe.files import check_writable, write_text

    lengths, depths = read_lengths("--prompts", prompts), read_lengths("--context", contexts)
    check_writable(json_file)
    check_writable(profile_plot)
    from qwen35_moe.benchmark import measure
    from qwen35_moe.cli.model import program_folder
    from qwen35_moe.cli.run import tell_plan
    from qwen35_moe.engine import Engine
    from qwen35_moe.profiling import check_profilable

    folder = program_folder(model, device)
    begin = time.perf_counter()
    with Engine.load(folder, device=device, on_plan=tell_plan) as engine:
        typer.echo(f"loaded in {time.perf_counter() - begin:.2f} s", err=True)
        if profile or profile_plot:
            check_profilable(engine, context=max(depths, default=0))
        typer.echo(HEADER)
        report = measure(
            engine, prompts=lengths, new_tokens=new_tokens, contexts=depths, repeats=repeats, on_row=_show_row
        )
        shares = _profile(engine, max(depths, default=0), profile_plot) if profile or profile_plot else ()
    memory = "" if report.peak_nbytes is None else f", peak memory {report.peak_nbytes / 1e9:.2f} GB"
    typer.echo(f"{report.device}, {report.quant}{memory}")
    if json_file is not None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        document = {
            "command": _command(prompts, new_tokens, contexts, repeats),
            "date": now,
            **report.document(),
            "profile": list(map(asdict, shares)),
        }
        write_text(json_file, json.dumps(document, indent=2) + "\n")


HEADER = (
    f"{'test':<16}{'tok/s':>10}{'slowest':>10}{'fastest':>10}{'first token':>13}{'MB a token':>12}{'of bandwidth':>14}"
)


def read_lengths(option: str, text: str) -> list[int]:
    """Return numbers that are separated by commas. Raises PromptError where one is not a whole number from 0 on."""
    from qwen35_moe.errors import PromptError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise PromptError(f"{option}: expected whole numbers separated by commas, got {wrong[0]!r}")
    return [int(part) for part in parts]


def _show_row(row: "Measurement") -> None:
    first = "" if row.first_token_s is None else f"{1e3 * row.first_token_s:.1f} ms"
    moved = "" if row.nbytes_per_token is None else f"{row.nbytes_per_token / 1e6:.1f}"
    share = "" if row.bandwidth_share is None else f"{100 * row.bandwidth_share:.1f} %"
    rates = f"{row.tokens_per_s:>10.1f}{row.slowest:>10.1f}{row.fastest:>10.1f}"
    typer.echo(f"{row.name:<16}{rates}{first:>13}{moved:>12}{share:>14}")


def _profile(engine: "Engine", context: int, picture: Path | None) -> "tuple[OperatorShare, ...]":
    """Profile decode steps behind the longest context, show and perhaps draw the result."""
    from qwen35_moe.files import write_text
    from qwen35_moe.profile_picture import describe, render_svg
    from qwen35_moe.profiling import profile_decode

    shares = profile_decode(engine, context=context)
    for share in shares:
        typer.echo(f"  {share.operator:<24}{share.calls:>6.0f} calls  {describe(share)}")
    if picture is not None:
        write_text(picture, render_svg(shares, f"decode step at context {context}"))
    return shares


def _command(prompts: str, new_tokens: int, contexts: str, repeats: int) -> str:
    return f"qwen35-moe bench -p {prompts} -n {new_tokens} --context {contexts} --repeats {repeats}"

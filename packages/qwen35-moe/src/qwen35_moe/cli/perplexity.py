"""``qwen35-moe perplexity``: loss on a text, before and after quantization."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from qwen35_moe.perplexity import Loss, LossOfWindow

Quant = Literal["all", "none", "int4"]


def perplexity(
    model: Annotated[
        Path | None, typer.Argument(help="Program or checkpoint folder; by default the tiny model.", show_default=False)
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="UTF-8 file; by default the held-out texts of the tiny model.", show_default=False),
    ] = None,
    quant: Annotated[
        Quant | None, typer.Option(help="Forms of a checkpoint to measure; by default all.", show_default=False)
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="Of int4: 32, 64 or 128; by default all that divide the model's matrices.")
    ] = None,
    activations: Annotated[Literal["float", "int8"] | None, typer.Option(help="Of int4; by default both.")] = None,
    window: Annotated[int, typer.Option(help="Longest piece of text that is read at once, in tokens.")] = 1024,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the loss a token and the perplexity of a model on a text."""
    from qwen35_moe.cli.model import export_progress, is_program, model_folder
    from qwen35_moe.errors import PromptError
    from qwen35_moe.files import read_text
    from qwen35_moe.perplexity import END_OF_TEXT, total_loss, windows
    from qwen35_moe.tokenizer import Tokenizer

    folder = model_folder(model)
    if is_program(folder) and (quant, group_size, activations) != (None, None, None):
        raise PromptError("--quant, --group-size and --activations: expected with a checkpoint; a program has its form")
    path = text or held_out_text()
    tokenizer = Tokenizer.from_folder(folder)
    end = tokenizer.encode(END_OF_TEXT)
    if len(end) != 1:
        raise PromptError(f"{folder}: expected a tokenizer that knows {END_OF_TEXT}")
    pieces = windows(tokenizer.encode(read_text(path)), end=end[0], length=window)
    losses: dict[str, Loss] = {}
    if is_program(folder):
        forms = _program_form(folder, device)
    else:
        longest = max(map(len, pieces))
        forms = _checkpoint_forms(folder, quant or "all", group_size, activations, longest, device)
    with export_progress(f"reading {path.name}") as (report, _):
        for label, loss_of in forms:
            losses[label] = total_loss(pieces, loss_of, partial(report, label))
    if as_json:
        typer.echo(json.dumps({"text": path.name, "forms": documents(losses)}, indent=2))
    else:
        _print_table(losses)


def held_out_text() -> Path:
    """Return the held-out texts that ship with the tiny model."""
    from qwen35_moe.cli.model import tiny_model

    return tiny_model().held_out_path()


def documents(losses: "dict[str, Loss]") -> dict[str, dict[str, float]]:
    """Return the figures for JSON; ``above`` is relative to the first form."""
    first = next(iter(losses.values()))
    return {
        label: {
            "tokens": loss.tokens,
            "loss": loss.per_token,
            "perplexity": loss.perplexity,
            "above": loss.nats / first.nats - 1,
        }
        for label, loss in losses.items()
    }


def _program_form(folder: Path, device: str) -> "Iterator[tuple[str, LossOfWindow]]":
    """Yield a program as it is."""
    from qwen35_moe.engine import Engine
    from qwen35_moe.perplexity import program_loss

    with Engine.load(folder, device=device) as engine:
        yield engine.info.quant, program_loss(engine)


def _checkpoint_forms(
    folder: Path, quant: Quant, group_size: int | None, activations: str | None, longest: int, device: str
) -> "Iterator[tuple[str, LossOfWindow]]":
    """Yield the forms of a checkpoint that were asked for; ``longest`` is the longest window's number of tokens."""
    from qwen35_moe.cli.model import usable_device
    from qwen35_moe.errors import PromptError
    from qwen35_moe.perplexity import checkpoint_loss, int4_forms

    place = usable_device(device).torch
    if quant == "none" and (group_size, activations) != (None, None):
        raise PromptError("--group-size and --activations: expected where --quant is int4 or all, got none")
    if quant in ("all", "none"):
        yield "unquantized", checkpoint_loss(folder, None, length=longest, device=place)
    if quant in ("all", "int4"):
        for form in int4_forms(folder, group_size):
            if activations in (None, form.activations):
                label = f"int4 group {form.group_size}, {form.activations} activations"
                yield label, checkpoint_loss(folder, form, length=longest, device=place)


def _print_table(losses: "dict[str, Loss]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("form", "tokens", "nats a token", "perplexity", "above the first", box=None, pad_edge=False)
    for label, figures in documents(losses).items():
        table.add_row(
            label,
            f"{figures['tokens']:,}",
            f"{figures['loss']:.4f}",
            f"{figures['perplexity']:.4f}",
            f"{100 * figures['above']:+.2f} %",
        )
    Console().print(table)

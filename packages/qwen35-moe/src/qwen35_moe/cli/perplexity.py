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
    quant: Annotated[Quant, typer.Option(help="Forms of a checkpoint to measure.")] = "all",
    group_size: Annotated[int | None, typer.Option(help="Of int4: 32, 64 or 128; by default all.")] = None,
    activations: Annotated[Literal["float", "int8"] | None, typer.Option(help="Of int4; by default both.")] = None,
    window: Annotated[int, typer.Option(help="Longest piece of text that is read at once, in tokens.")] = 1024,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the loss a token and the perplexity of a model on a text."""
    from qwen35_moe.cli.model import export_progress, model_folder
    from qwen35_moe.errors import PromptError
    from qwen35_moe.perplexity import END_OF_TEXT, total_loss, windows
    from qwen35_moe.tokenizer import Tokenizer

    folder = model_folder(model)
    path = text or held_out_text()
    tokenizer = Tokenizer.from_folder(folder)
    end = tokenizer.encode(END_OF_TEXT)
    if len(end) != 1 or window < 2:
        raise PromptError(f"expected a tokenizer that knows {END_OF_TEXT} and a window of at least 2, got {window}")
    pieces = windows(tokenizer.encode(path.read_text(encoding="utf-8")), end=end[0], length=window)
    losses: dict[str, Loss] = {}
    with export_progress(f"reading {path.name}") as (report, _):
        for label, loss_of in _forms(folder, quant, group_size, activations, window, device):
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


def _forms(
    folder: Path, quant: Quant, group_size: int | None, activations: str | None, window: int, device: str
) -> "Iterator[tuple[str, LossOfWindow]]":
    """Yield what is measured: the program as it is, or the forms of a checkpoint that were asked for."""
    import torch

    from qwen35_moe.cli.model import is_program, resolve_device
    from qwen35_moe.engine import Engine
    from qwen35_moe.perplexity import checkpoint_loss, int4_forms, program_loss

    if is_program(folder):
        with Engine.load(folder, device=device) as engine:
            yield engine.info.quant, program_loss(engine)
        return
    place = torch.device(resolve_device(device))
    if quant in ("all", "none"):
        yield "unquantized", checkpoint_loss(folder, None, length=window, device=place)
    if quant in ("all", "int4"):
        for form in int4_forms():
            if group_size in (None, form.group_size) and activations in (None, form.activations):
                label = f"int4 group {form.group_size}, {form.activations} activations"
                yield label, checkpoint_loss(folder, form, length=window, device=place)


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

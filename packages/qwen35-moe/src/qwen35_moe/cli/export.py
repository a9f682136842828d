"""``qwen35-moe export``: a checkpoint folder to a program folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a Hugging Face checkpoint.")],
    output: Annotated[Path, typer.Option(help="Program folder to write; it must not exist.")],
    quant: Annotated[Literal["int4", "none"], typer.Option(help="Form of the matrices.")] = "int4",
    group_size: Annotated[int, typer.Option(help="Weights that share an int4 scale: 32, 64 or 128.")] = 128,
    max_context: Annotated[int, typer.Option(help="Tokens of the longest sequence.")] = 4096,
    slots: Annotated[int, typer.Option(help="Sequences that have state at once.")] = 1,
    device: Annotated[str, typer.Option(help="Where it will run: cpu or cuda:0. No GPU is needed here.")] = "cpu",
    activations: Annotated[
        Literal["float", "int8"] | None,
        typer.Option(help="What int4 matrices multiply; by default int8 on a GPU, float on the CPU."),
    ] = None,
) -> None:
    """Export a checkpoint to a program folder."""
    from qwen35_moe.cli.model import export_progress, is_program
    from qwen35_moe.errors import CheckpointError
    from qwen35_moe.exporter import ExportOptions, export_checkpoint

    if is_program(checkpoint):
        raise CheckpointError(f"{checkpoint}: expected a checkpoint folder, got a program that is exported already")
    if output.exists():
        raise FileExistsError(f"{output}: exists already; name a folder that does not, or remove it")
    options = ExportOptions(
        quant=quant, group_size=group_size, max_context=max_context, slots=slots, device=device, activations=activations
    )
    with export_progress(f"exporting {checkpoint}") as (report, _):
        program = export_checkpoint(checkpoint, output, options, report)
    nbytes = sum(path.stat().st_size for path in output.iterdir() if path.is_file())
    typer.echo(f"{output}: {len(program.methods)} methods, {len(program.constants)} constants, {nbytes / 1e6:,.1f} MB")

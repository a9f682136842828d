"""``qwen35-moe inspect``: what is in a program folder."""

import json
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    folder: Annotated[Path, typer.Argument(help="Program folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    memory_plan: Annotated[Path | None, typer.Option(help="Draw the planned memory of a method as SVG.")] = None,
    method: Annotated[str | None, typer.Option(help="The method that --memory-plan draws; by default decode.")] = None,
) -> None:
    """Show methods, inputs and outputs, planned buffers, instructions and constants; no weight is read."""
    from device_core.schema.codec import read_program

    from qwen35_moe.errors import EngineError
    from qwen35_moe.files import check_folder, write_text
    from qwen35_moe.inspection import describe, program_document

    check_folder(folder, EngineError)
    if method is not None and memory_plan is None:
        raise EngineError("--method: expected together with --memory-plan, whose method it names")
    program = read_program(folder)
    if memory_plan is not None:
        from export_passes.memory_plan.picture import render_svg

        methods = {each.name: each for each in program.methods}
        if (drawn := "decode" if method is None else method) not in methods:
            raise EngineError(f"{folder}: no method {drawn!r}; there are {', '.join(methods)}")
        write_text(memory_plan, render_svg(methods[drawn]))
    if as_json:
        typer.echo(json.dumps(program_document(program), ensure_ascii=False, indent=2))
    else:
        typer.echo("\n".join(describe(program)))

"""``qwen35-moe run``: complete a text, streaming."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from qwen35_moe.generation import Completion
    from qwen35_moe.sampling import SamplingParameters

DEFAULT_NEW_TOKENS = 256


def run(
    model: Annotated[
        Path | None, typer.Argument(help="Program or checkpoint folder; by default the tiny model.", show_default=False)
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to complete, as it is: no chat template is applied.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File that holds the text to complete, in UTF-8.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = DEFAULT_NEW_TOKENS,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest with this probability.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out what is less likely than this share of the best.")
    ] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Taken off tokens of the output, once.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Taken off per occurrence in the output.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Divides tokens of prompt and output.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text; by default a new one.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    stats: Annotated[bool, typer.Option("--stats", help="Show memory and speed on stderr.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
) -> None:
    """Complete a text. Sampling options that are not given are those of generation_config.json."""
    text = read_prompt(prompt, prompt_file)
    given = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
        "repetition_penalty": repetition_penalty, "seed": seed,
    }  # fmt: skip
    from qwen35_moe.cli.model import model_folder, program_folder

    sampling = sampling_of(model_folder(model), given)
    folder = program_folder(model, device)
    completion = _complete(folder, text, sampling, max_new_tokens, device, quiet=as_json, plan=stats)
    if as_json:
        typer.echo(json.dumps(completion.document(), ensure_ascii=False, indent=2))
    if stats:
        typer.echo(completion.timings.describe(), err=True)


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Return the text to complete. Raises PromptError where there is none or two."""
    from qwen35_moe.errors import PromptError
    from qwen35_moe.files import read_text

    if (prompt is None) == (prompt_file is None):
        raise PromptError("expected one of --prompt and --prompt-file, got " + ("none" if prompt is None else "both"))
    if prompt_file is not None:
        return read_text(prompt_file)
    assert prompt is not None
    return prompt


def sampling_of(folder: Path, given: dict[str, Any]) -> "SamplingParameters":
    """Return what was given, and for the rest the defaults of the folder; without a seed a new one is drawn."""
    import dataclasses
    import secrets

    from qwen35_moe.sampling import read_defaults

    chosen = {name: value for name, value in given.items() if value is not None}
    chosen.setdefault("seed", secrets.randbelow(2**63))
    return dataclasses.replace(read_defaults(folder), **chosen)


def tell_plan(plan: object) -> None:
    """Show a memory plan on stderr."""
    typer.echo(str(plan), err=True)


def _complete(
    folder: Path,
    text: str,
    sampling: "SamplingParameters",
    max_new_tokens: int,
    device: str,
    *,
    quiet: bool,
    plan: bool,
) -> "Completion":
    """Load, stream to stdout unless ``quiet``, and return the whole."""
    from qwen35_moe.engine import Engine
    from qwen35_moe.generation import Completion, stream_text
    from qwen35_moe.tokenizer import Tokenizer

    begin = time.perf_counter()
    tokenizer = Tokenizer.from_folder(folder)
    with Engine.load(folder, device=device, on_plan=tell_plan if plan else None) as engine:
        completion = Completion(prompt_ids=tokenizer.encode(text), load_s=time.perf_counter() - begin)
        for piece in stream_text(engine, tokenizer, completion, sampling, max_new_tokens=max_new_tokens):
            if not quiet:
                sys.stdout.write(piece)
                sys.stdout.flush()
    if not quiet:
        sys.stdout.write("\n")
    return completion

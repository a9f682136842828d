"""The entry point: which command, and how a failure is told."""

import os
import sys

import typer

from qwen35_moe.cli import bench, export, inspect, perplexity, run
from qwen35_moe.cli.failures import exit_code_of

PACKAGES = ("qwen35-moe", "cuda-kernels", "export-passes", "device-core")

app = typer.Typer(
    name="qwen35-moe",
    help="Run Qwen3.5-MoE models: quantize, export to a device-aware program, stream text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than --help may take
)
app.command("run")(run.run)
app.command("export")(export.export)
app.command("inspect")(inspect.inspect)
app.command("bench")(bench.bench)
app.command("perplexity")(perplexity.perplexity)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo("\n".join(f"{package} {version(package)}" for package in PACKAGES))
        raise typer.Exit


@app.callback()
def _options(
    _: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show all four versions."),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: done. 1: nobody reads the output. 2: a mistake of the user, told in one line on stderr. 130: interrupted.
    """
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered cannot be written: it must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if (failed := exit_code_of(error)) is None:
            raise
        return failed
    return code if isinstance(code, int) else 0

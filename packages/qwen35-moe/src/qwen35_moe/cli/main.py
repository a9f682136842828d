"""The entry point: which command, and how a failure is told."""

import io
import os
import sys

import typer

from qwen35_moe.cli import bench, export, inspect, perplexity, run
from qwen35_moe.cli.failures import INTERRUPTED, exit_code_of, tell_interrupt

PACKAGES = ("qwen35-moe", "cuda-kernels", "export-passes", "device-core")

app = typer.Typer(
    name="qwen35-moe",
    help="Run Qwen3.5-MoE models: quantize, export to a device-aware program, stream text.",
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


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    _: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show all four versions."),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _prepare_output() -> None:
    """Let a character that the terminal's encoding lacks become a question mark, and no output at all be no error."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: done. 1: nobody reads the output. 2: a mistake of the user, told in one line on stderr. 130: interrupted.
    """
    try:
        _prepare_output()
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
    if code == INTERRUPTED:  # the framework gives an interrupt back as a code
        return tell_interrupt()
    return code if isinstance(code, int) else 0

"""The command line ``qwen35-moe``."""

from qwen35_moe.cli.main import main

__all__ = ["main"]

"""A checkpoint that has text, and the program that the command line makes of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from qwen35_moe.cli import main
from tokenizers import AddedToken, decoders, models, pre_tokenizers


def write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the 256 bytes and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<|im_end|>", special=True)])
    backend.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def text_checkpoint(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "checkpoint"
    shutil.copytree(small_checkpoint, folder)
    write_byte_tokenizer(folder)
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": 257}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture(scope="session")
def text_program(text_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of `text_checkpoint`, exported through the command line: int4 group 32, context 64."""
    folder = tmp_path_factory.mktemp("text") / "program"
    arguments = ["--group-size", "32", "--max-context", "64", "--slots", "2"]
    assert main(["export", str(text_checkpoint), "--output", str(folder), *arguments]) == 0
    return folder


@pytest.fixture
def program_copy(text_program: Path, tmp_path: Path) -> Path:
    """Return a copy of the program that a test may damage."""
    return Path(shutil.copytree(text_program, tmp_path / "program"))


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process; return exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Check that a command told a mistake in one line that has these words."""
    code, _, error = result
    assert code == 2
    told = [line for line in error.splitlines() if not line.startswith(("memory on", "loaded in"))]
    assert len(told) == 1, error
    assert told[0].startswith("error: ")
    for word in words:
        assert word in error

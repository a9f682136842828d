"""The example of the README runs."""

import re
from pathlib import Path

import device_core
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example, {})
    assert "[1., 2., 3., 4.]" in capsys.readouterr().out


@pytest.mark.parametrize("name", device_core.__all__)
def test_public_names_are_there_and_documented(name: str) -> None:
    assert getattr(device_core, name).__doc__ or name in ("BACKENDS", "HOST")

"""The cache of exported programs: what its key depends on, and two exports at the same time."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from qwen35_moe import cache
from qwen35_moe.errors import CheckpointError
from qwen35_moe.exporter import ExportOptions

OPTIONS = ExportOptions(group_size=32, max_context=32)


def key(checkpoint: Path, options: ExportOptions = OPTIONS) -> str:
    return cache.program_key(checkpoint, options, lambda stage, done, total: None)


def test_key_is_of_content_and_options(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    first = key(checkpoint)
    (checkpoint / "config.json").touch()
    (checkpoint / "README.md").write_text("not part of the program")
    moved = checkpoint.rename(tmp_path / "moved")
    assert key(moved) == first
    assert key(moved, replace(OPTIONS, max_context=33)) != first
    assert key(moved, replace(OPTIONS, device="cuda:0")) != first
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert key(moved) != first


def test_key_depends_on_version_and_code(make_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make_checkpoint()
    first = key(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(cache.metadata, "version", lambda package: "99")
        assert key(checkpoint) != first
    monkeypatch.setattr(cache, "_add_code", lambda digest, module: digest.update(b"other code"))
    assert key(checkpoint) != first


def test_key_of_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        key(tmp_path)


def test_second_of_two_waits_and_uses_what_the_first_made(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint()
    monkeypatch.setenv("QWEN35_MOE_CACHE", str(tmp_path / "cache"))
    exports: list[Path] = []
    waiting = threading.Event()

    def export(checkpoint: Path, output: Path, options: ExportOptions, on_progress: object) -> None:
        exports.append(output)
        assert waiting.wait(timeout=60)
        output.mkdir()

    monkeypatch.setattr(cache, "export_checkpoint", export)
    results: list[Path] = []

    def use() -> None:
        results.append(cache.cached_program(checkpoint, OPTIONS, on_wait=waiting.set))

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(exports) == 1
    assert results == [exports[0]] * 2
    assert cache.cached_program(checkpoint, OPTIONS, on_wait=lambda: pytest.fail("waited")) == exports[0]
    assert len(exports) == 1


def test_failed_export_is_not_kept(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint()
    monkeypatch.setenv("QWEN35_MOE_CACHE", str(tmp_path / "cache"))
    (checkpoint / "model.safetensors").write_bytes(b"\0" * 16)
    with pytest.raises(CheckpointError):
        cache.cached_program(checkpoint, OPTIONS, on_wait=lambda: None)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_a_killed_export_left_aside_is_removed_by_the_next(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint()
    monkeypatch.setenv("QWEN35_MOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "export_checkpoint", lambda checkpoint, output, options, on_progress: output.mkdir())
    name = f"checkpoint-{key(checkpoint)}"
    left, other = (tmp_path / "cache" / f".{stem}.partial-01234567" for stem in (name, "other"))
    for folder in (left, other):
        folder.mkdir(parents=True)
        (folder / "shard-0").touch()
    assert cache.cached_program(checkpoint, OPTIONS, on_wait=lambda: None).name == name
    assert not left.exists()
    assert other.exists()


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QWEN35_MOE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "qwen35-moe"

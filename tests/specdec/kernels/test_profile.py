"""What was measured is found again on the same machine, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specdec.kernels.linear import ROW_COUNTS
from specdec.kernels.measuring import Seconds
from specdec.kernels.profile import load_seconds, save_seconds

SHAPE = (64, 32)
SECONDS: Seconds = {"default": {count: count / 1e5 for count in ROW_COUNTS}, "batched": {1: 2e-6}}


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that it is kept in."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    assert load_seconds(SHAPE, torch.float32) is None
    save_seconds(SHAPE, torch.float32, SECONDS)
    (path,) = (tmp_path / "kernels").iterdir()
    assert path.name.startswith("64x32-")
    return path


def test_the_same_comes_back() -> None:
    assert load_seconds(SHAPE, torch.float32) == SECONDS
    assert load_seconds((32, 64), torch.float32) is None
    assert load_seconds(SHAPE, torch.bfloat16) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch.get_num_threads", lambda: 77),
        ("torch.backends.cpu.get_cpu_capability", lambda: "AVX1024"),
        ("torch.__version__", "2.99.0"),
        ("specdec.kernels.profile._processor", lambda: "another"),
        ("specdec.kernels.profile._FORMAT", 0),
    ],
)
def test_another_machine_measures_for_itself(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr(name, value)
    assert load_seconds(SHAPE, torch.float32) is None


def test_a_file_under_the_wrong_name_is_not_used(stored: Path) -> None:
    content = json.loads(stored.read_text())
    content["key"]["processor"] = "another"
    stored.write_text(json.dumps(content))
    assert load_seconds(SHAPE, torch.float32) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: {},
        lambda content: content | {"more": 1},
        lambda content: content | {"seconds": {}},
        lambda content: content | {"seconds": {"default": {"1": 1e-5}}},
        lambda content: content | {"seconds": content["seconds"] | {"magic": {"1": 1e-9}}},
        lambda content: content | {"seconds": content["seconds"] | {"packed": {"1": -1.0}}},
        lambda content: content | {"seconds": content["seconds"] | {"packed": {"one": 1.0}}},
        lambda content: content | {"seconds": content["seconds"] | {"packed": {"1": "fast"}}},
        lambda content: [content],
    ],
)
def test_a_damaged_file_is_not_used(stored: Path, damage: object) -> None:
    assert callable(damage)
    stored.write_text(json.dumps(damage(json.loads(stored.read_text()))))
    assert load_seconds(SHAPE, torch.float32) is None
    save_seconds(SHAPE, torch.float32, SECONDS)
    assert load_seconds(SHAPE, torch.float32) == SECONDS


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"key":', b"[" * 100_000])
def test_a_file_that_is_no_json_is_not_used(stored: Path, content: bytes) -> None:
    stored.write_bytes(content)
    assert load_seconds(SHAPE, torch.float32) is None


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    save_seconds(SHAPE, torch.float32, SECONDS)
    assert load_seconds(SHAPE, torch.float32) is None

"""Models that mean harm, or are damaged so that they do: one sentence at the start, no code run, nothing else read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specdec.engine.limits import LARGEST_CONTEXT_LENGTH
from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from tests.specdec.models.saved_models import edit_json, save_tiny_model, write_tiny_gguf
from tests.tiny_models import tiny_llama

_EVIL = "import pathlib; pathlib.Path({!r}).write_text('ran')"


def split(directory: Path, file: object) -> dict[str, object]:
    """Have an index name the file of all tensors, which are taken away."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return dict(tensors)


def test_weights_in_parts_are_read(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    split(tmp_path, "other.safetensors")
    load_model(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "{}/outside.safetensors", "sub/x.safetensors", "evil.bin", "..", "", 7]
)
def test_an_index_names_safetensors_beside_it_only(tmp_path: Path, name: object) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    save_tiny_model(directory)
    save_file(load_file(directory / "model.safetensors"), tmp_path / "outside.safetensors", {"format": "pt"})
    (directory / "evil.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    split(directory, name.format(tmp_path) if isinstance(name, str) else name)
    with pytest.raises(ModelError, match=r"names a file that is not a \.safetensors file beside it"):
        load_model(str(directory))


@pytest.mark.parametrize("content", ["{", "[]", "7", "{}", '{"weight_map": 7}', '{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_is_damaged(tmp_path: Path, content: str) -> None:
    save_tiny_model(tmp_path)
    split(tmp_path, "other.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"index\.json (cannot be read|names no file)"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 1 << 30),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 0),
        ("hidden_size", 0),
        ("hidden_size", -4),
        ("hidden_size", 1 << 40),
        ("vocab_size", 1 << 40),
        ("intermediate_size", 1 << 50),
        ("num_attention_heads", 0),
        ("head_dim", 7),
        ("num_key_value_heads", 3),
        ("hidden_act", "__import__"),
    ],
)
def test_sizes_that_no_model_has(tmp_path: Path, name: str, value: object) -> None:
    save_tiny_model(tmp_path)
    edit_json(tmp_path / "config.json", **{name: value})
    with pytest.raises(ModelError):
        load_model(str(tmp_path))


def test_a_context_that_no_model_has_is_cut(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    edit_json(tmp_path / "config.json", max_position_embeddings=1 << 60)
    assert load_model(str(tmp_path)).info.max_context_length == LARGEST_CONTEXT_LENGTH


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"\xff\xfe{"),
        ("config.json", b"[" * 100_000),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"\xff"),
        ("chat_template.jinja", b"\xff\xff"),
        ("adapter_config.json", b'{"base_model_name_or_path": "/etc"}'),
        ("model.safetensors", struct.pack("<Q", 1 << 40) + b"{}"),
        ("model.safetensors", b"\x80\x04cos\nsystem\n"),
    ],
)
def test_files_that_are_not_what_they_are_called(tmp_path: Path, file: str, content: bytes) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError):
        load_model(str(tmp_path))


def test_stop_ids_of_the_wrong_kind_are_none(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    edit_json(tmp_path / "generation_config.json", eos_token_id=["x", 7, -1, 1 << 40, None])
    assert list(load_model(str(tmp_path)).info.stop_token_ids) == [1, 7]


def _set(place: slice, content: bytes) -> Callable[[bytearray], None]:
    return lambda data: data.__setitem__(place, content)


def _after(key: bytes, skip: int, content: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        start = data.index(key) + len(key) + skip
        data[start : start + len(content)] = content

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(slice(8, 16), struct.pack("<Q", 1 << 60)),
        _set(slice(16, 24), struct.pack("<Q", 1 << 60)),
        _set(slice(24, 32), struct.pack("<Q", 1 << 60)),
        _after(b"tokenizer.ggml.tokens", 8, struct.pack("<Q", 1 << 50)),
        _after(b"llama.block_count", 4, struct.pack("<I", (1 << 31) - 1)),
        lambda data: data.__delitem__(slice(len(data) // 2, None)),
    ],
    ids=["tensors", "keys", "name", "array", "layers", "cut"],
)
def test_gguf_files_with_absurd_counts(tmp_path: Path, empty_cache: Path, change: Callable[[bytearray], None]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    with pytest.raises(ModelError):
        load_model(str(path))


def test_a_service_says_one_sentence_and_ends(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    save_tiny_model(directory)
    marker = tmp_path / "ran"
    (directory / "modeling_evil.py").write_text(_EVIL.format(str(marker)))
    edit_json(directory / "config.json", model_type="evil", auto_map={"AutoConfig": "modeling_evil.Evil"})
    done = subprocess.run(
        [sys.executable, "-m", "target_service", "--model", str(directory), "--port", "0", "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode != 0
    assert "trust_remote_code is always off here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not marker.exists()

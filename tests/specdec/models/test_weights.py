from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from specdec.models.architecture import read_config
from specdec.models.errors import ModelError
from specdec.models.weights import load_weights
from specdec.runner.attention import ATTENTION_NAME
from tests.specdec.models.saved_models import edit_json, save_tiny_model
from tests.tiny_models import tiny_llama

CPU = torch.device("cpu")


def load(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return load_weights(directory, read_config(directory), dtype, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_model_is_ready_to_serve(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tiny_model(tmp_path)
    model = load(tmp_path, dtype)
    assert model.dtype == dtype
    assert model.config._attn_implementation == ATTENTION_NAME
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in tiny_llama().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.to(dtype)), name


def test_config_of_the_caller_is_left_alone(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    config = read_config(tmp_path)
    before = config.to_dict()
    load_weights(tmp_path, config, torch.bfloat16, CPU)
    assert config.to_dict() == before


def test_no_bar_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path)
    capfd.readouterr()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.is_progress_bar_enabled()


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights only, which are never read .* save_pretrained"):
        load(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \.safetensors file"):
        load(tmp_path)


def test_missing_tensor_is_not_made_up(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 tensors .* model\.layers\.1\.self_attn\.k_proj\.weight"):
        load(tmp_path)


def test_wrong_shapes(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    edit_json(tmp_path / "config.json", intermediate_size=96)
    with pytest.raises(ModelError, match=r"cannot be loaded .*with weights that fit its config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_file_cut_short(tmp_path: Path, keep: int) -> None:
    save_tiny_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"cannot be loaded .* get an intact copy"):
        load(tmp_path)


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise torch.OutOfMemoryError

    save_tiny_model(tmp_path)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelError, match=r"does not fit into the memory of cpu as torch\.float32; choose a smaller"):
        load(tmp_path)

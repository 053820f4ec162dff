import json
from pathlib import Path

import pytest
import transformers
from transformers import PreTrainedConfig

from specdec.models.architecture import check_architecture, max_positions, read_config
from specdec.models.errors import ModelError
from tests.specdec.models.saved_models import edit_json, save_tiny_model
from tests.tiny_models import tiny_llama_config


def save_config(directory: Path, content: object) -> Path:
    (directory / "config.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    "name",
    [
        "LlamaConfig",
        "Qwen3Config",
        "MistralConfig",
        "Gemma2Config",
        "Gemma3TextConfig",
        "Phi3Config",
        "GPTNeoXConfig",
        "GPT2Config",
        "MixtralConfig",
        "GptOssConfig",
        "DeepseekV3Config",
    ],
)
def test_decoders_with_attention_are_served(name: str) -> None:
    check_architecture(getattr(transformers, name)())


@pytest.mark.parametrize(
    "name",
    [
        "MambaConfig",
        "Mamba2Config",
        "FalconMambaConfig",
        "RwkvConfig",
        "RecurrentGemmaConfig",
        "JambaConfig",
        "BambaConfig",
        "FalconH1Config",
        "Zamba2Config",
        "Qwen3NextConfig",
        "MiniMaxConfig",
        "GraniteMoeHybridConfig",
    ],
)
def test_state_that_cannot_be_cut_back(name: str) -> None:
    with pytest.raises(ModelError, match=r"keeps a running state .*cannot be cut back .* layers all use attention"):
        check_architecture(getattr(transformers, name)())


def test_convolutions_are_state_too() -> None:
    config = transformers.Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"])
    with pytest.raises(ModelError, match=r"lfm2 keeps a running state \(conv\)"):
        check_architecture(config)


def test_kinds_of_attention_that_are_not_known() -> None:
    with pytest.raises(ModelError, match="llama4_text has layers of kind chunked_attention"):
        check_architecture(transformers.Llama4TextConfig())


@pytest.mark.parametrize("name", ["BloomConfig", "MptConfig", "FalconConfig", "XGLMConfig"])
def test_attention_outside_of_the_interface(name: str) -> None:
    with pytest.raises(ModelError, match="outside of transformers' attention interface"):
        check_architecture(getattr(transformers, name)())


@pytest.mark.parametrize("name", ["T5Config", "BartConfig", "WhisperConfig"])
def test_encoder_decoder(name: str) -> None:
    with pytest.raises(ModelError, match="is an encoder-decoder model; choose a decoder-only one"):
        check_architecture(getattr(transformers, name)())


def test_no_language_model() -> None:
    with pytest.raises(ModelError, match="no causal language model of type vit"):
        check_architecture(transformers.ViTConfig())


def test_config_is_read(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    config = read_config(tmp_path)
    assert isinstance(config, transformers.LlamaConfig)
    assert config.hidden_size == tiny_llama_config().hidden_size


def test_repository_code_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "configuration_evil.py").write_text("raise SystemExit('ran')")
    save_config(tmp_path, {"model_type": "evil", "auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}})
    with pytest.raises(
        ModelError, match="trust_remote_code is always off here; choose a model that transformers knows"
    ):
        read_config(tmp_path)


def test_repository_code_of_a_known_architecture_is_left_aside(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "configuration_evil.py").write_text("raise SystemExit('ran')")
    edit_json(tmp_path / "config.json", auto_map={"AutoConfig": "configuration_evil.EvilConfig"})
    assert isinstance(read_config(tmp_path), transformers.LlamaConfig)


def test_unknown_architecture(tmp_path: Path) -> None:
    save_config(tmp_path, {"model_type": "from_the_future"})
    with pytest.raises(ModelError, match=r"transformers [\d.]+\S* does not know the architecture 'from_the_future'"):
        read_config(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json; give a directory or hub id"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "\0"])
def test_damaged_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json cannot be read .*intact copy"):
        read_config(tmp_path)


def test_config_with_values_of_the_wrong_kind(tmp_path: Path) -> None:
    save_config(tmp_path, {"model_type": "llama", "hidden_size": "many"})
    with pytest.raises(ModelError, match="is not a valid config of a llama model"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (transformers.LlamaConfig(max_position_embeddings=77), 77),
        (transformers.GPT2Config(n_positions=78), 78),
        (transformers.BloomConfig(), None),
    ],
)
def test_longest_sequence(config: PreTrainedConfig, positions: int | None) -> None:
    assert max_positions(config) == positions

from pathlib import Path

import pytest

from specdec.models.description import read_description
from specdec.models.errors import ModelError
from tests.specdec.models.saved_models import edit_json, save_tiny_model
from tests.tiny_models import tiny_llama, tiny_tokenizer_files


def test_description_of_a_model(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    description = read_description(tmp_path)
    assert description.config.model_type == "llama"
    assert description.tokenizer_files == tiny_tokenizer_files()
    assert description.vocab_size == 320


def test_padding_rows_do_not_count(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, tiny_llama(vocab_size=384))
    assert read_description(tmp_path).vocab_size == 320


def test_tokenizer_with_more_ids_than_rows(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, tiny_llama(vocab_size=319))
    with pytest.raises(ModelError, match="has 320 ids and the model only 319 rows; use the tokenizer of this model"):
        read_description(tmp_path)


def test_tokenizer_without_a_fast_file(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="a fast tokenizer file"):
        read_description(tmp_path)


def test_architecture_is_checked(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    edit_json(tmp_path / "config.json", model_type="rwkv", architectures=["RwkvForCausalLM"])
    with pytest.raises(ModelError, match="running state"):
        read_description(tmp_path)

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, LlamaModel

from specdec.kernels.few_rows import FewRowsLayer
from specdec.models.errors import ModelError
from specdec.models.loading import choose_device, choose_dtype, load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.settings import LinearKernel
from specdec.tokenizer_files import tokenizer_hash
from specdec.v1 import model_pb2
from tests.specdec.models.saved_models import edit_json, save_tiny_model, write_tiny_gguf
from tests.tiny_models import BOS_TOKEN, tiny_llama, tiny_tokenizer_files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model whose checkpoint has padding rows."""
    return save_tiny_model(tmp_path / "tiny", tiny_llama(vocab_size=384))


def test_facts_of_a_model(directory: Path) -> None:
    loaded = load_model(str(directory), device="cpu")
    assert isinstance(loaded.model, LlamaForCausalLM)
    assert loaded.tokenizer_files == tiny_tokenizer_files()
    assert len(loaded.info.weights_fingerprint) == 64
    assert loaded.info == model_pb2.ModelInfo(
        model_id=str(directory),
        tokenizer_hash=tokenizer_hash(tiny_tokenizer_files()),
        vocab_size=320,
        max_context_length=512,
        dtype="float32",
        device="cpu",
        stop_token_ids=[1],
        weights_fingerprint=loaded.info.weights_fingerprint,
    )


def test_gguf_file_by_its_path(tmp_path: Path, empty_cache: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    loaded = load_model(str(path), device="cpu")
    assert [entry.name.split("-")[0] for entry in empty_cache.iterdir() if entry.is_dir()] == ["hashes", "tiny"]
    assert loaded.info.vocab_size == 320
    assert torch.equal(loaded.model.state_dict()["lm_head.weight"], tiny_llama().lm_head.weight)


@pytest.mark.parametrize(("setting", "expected"), [(0, 512), (100, 100), (512, 512), (9999, 512)])
def test_context_is_the_smaller_of_model_and_setting(directory: Path, setting: int, expected: int) -> None:
    assert load_model(str(directory), device="cpu", max_context_length=setting).info.max_context_length == expected


def test_context_that_nobody_names(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.models.loading.max_positions", lambda config: None)
    with pytest.raises(ModelError, match="names no longest sequence; set --max-context-length"):
        load_model(str(directory), device="cpu")
    assert load_model(str(directory), device="cpu", max_context_length=99).info.max_context_length == 99


@pytest.mark.parametrize(
    ("of_generation", "of_tokenizer", "expected"),
    [
        ([1, 7], "<|eos|>", [1, 7]),
        (7, "<|eos|>", [1, 7]),
        ([7, 5], None, [5, 7]),
        # A padding row never comes out, and a token that the tokenizer does not have stops nothing.
        ([1, 320, 383], "<gone>", [1]),
    ],
)
def test_stop_ids_of_tokenizer_and_generation_config(
    directory: Path, of_generation: object, of_tokenizer: str | None, expected: list[int]
) -> None:
    edit_json(directory / "generation_config.json", eos_token_id=of_generation)
    edit_json(directory / "tokenizer_config.json", eos_token=of_tokenizer)
    assert load_model(str(directory), device="cpu").info.stop_token_ids == expected


def test_stop_ids_without_a_generation_config(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    edit_json(directory / "config.json", eos_token_id=[3])
    assert load_model(str(directory), device="cpu").info.stop_token_ids == [1, 3]


def test_sampling_defaults_of_the_model_are_not_among_its_facts(directory: Path) -> None:
    plain = load_model(str(directory), device="cpu")
    edit_json(
        directory / "generation_config.json",
        do_sample=True,
        temperature=0.6,
        repetition_penalty=1.1,
        top_k=20,
        top_p=0.9,
    )
    with_defaults = load_model(str(directory), device="cpu")
    assert with_defaults.info == plain.info


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype(directory: Path, dtype: str) -> None:
    loaded = load_model(str(directory), device="cpu", dtype=dtype)
    assert loaded.info.dtype == dtype
    assert loaded.model.dtype == getattr(torch, dtype)


def test_auto_means_float32_on_cpu_and_bfloat16_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda:0")
    assert choose_device("cuda") == torch.device("cuda:0")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda:0")) == torch.bfloat16


@pytest.mark.parametrize("count", [0, 2])
def test_cuda_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ModelError, match=f"'cuda:2' was asked for and {count} CUDA devices are usable; choose cpu"):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["", "gpu", "mps", "meta", "cuda:x", "cpu:0:1"])
def test_device_that_is_not_served(name: str) -> None:
    with pytest.raises(ModelError, match="is not served; choose cpu, cuda, cuda:N or auto"):
        choose_device(name)


def test_dtype_that_is_not_served() -> None:
    with pytest.raises(ModelError, match="dtype 'int8' is not served; choose float32, bfloat16, float16 or auto"):
        choose_dtype("int8", torch.device("cpu"))


def test_bad_device_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        pytest.fail("fetched")

    monkeypatch.setattr("specdec.models.loading.provide_model", fail)
    with pytest.raises(ModelError, match="is not served"):
        load_model("smollm2-135m-instruct", device="abacus")


@pytest.mark.parametrize("linear_kernel", ["default", "auto", "invariant"])
def test_model_is_probed(directory: Path, monkeypatch: pytest.MonkeyPatch, linear_kernel: LinearKernel) -> None:
    monkeypatch.setattr("specdec.runner.cache.SequenceCache.truncate", lambda self, length: None)
    with pytest.raises(ModelError, match="other values over a ragged batch"):
        load_model(str(directory), device="cpu", linear_kernel=linear_kernel)


def test_where_kernels_are_chosen_layers_are_of_few_calls(directory: Path) -> None:
    own, chosen = (load_model(str(directory), device="cpu", linear_kernel=name) for name in ("default", "auto"))
    assert own.info == chosen.info
    assert type(own.model.base_model) is LlamaModel
    assert {type(layer) for layer in chosen.model.model.layers} == {FewRowsLayer}
    (expected,), (found,) = (
        ModelRunner(each.model, 320).forward([Work(SequenceCache(), [5, 6, 7], 3)]) for each in (own, chosen)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_template_and_special_tokens_are_kept(directory: Path) -> None:
    loaded = load_model(str(directory), device="cpu")
    assert loaded.tokenizer_files.chat_template == tiny_tokenizer_files().chat_template
    assert loaded.tokenizer_files.special_tokens["bos_token"] == BOS_TOKEN

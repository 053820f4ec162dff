"""The real embedded model, in the user's own cache: fetched by the first test run on a machine."""

import time
from pathlib import Path

import pytest
import torch

from specdec.models.catalog import CATALOG
from specdec.models.loading import LoadedModel, load_model
from specdec.models.progress import directory_bytes, log_report
from specdec.models.source import find_model, provide_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.settings import DEFAULT_MODEL, LinearKernel
from specdec.tokenizer_files import tokenizer_hash, vocab_size

SECONDS_TO_LOAD = 8.0


@pytest.fixture(scope="module")
def directory() -> Path:
    """The converted model; a minute or so where it is not in the cache yet."""
    return provide_model(DEFAULT_MODEL, log_report)


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(DEFAULT_MODEL, device="cpu")


def test_facts(loaded: LoadedModel) -> None:
    assert loaded.info.model_id == DEFAULT_MODEL
    assert loaded.info.vocab_size == 49152
    assert loaded.info.max_context_length == 8192
    assert loaded.info.stop_token_ids == [2]
    assert loaded.info.dtype == "float32"
    assert loaded.info.device == "cpu"
    assert loaded.info.tokenizer_hash == "c30545941f51148a4eff76f997467602144c2357df2ee64f86a84eb54b7d7bca"


def test_tokenizer(loaded: LoadedModel) -> None:
    files = loaded.tokenizer_files
    assert vocab_size(files) == 49152
    assert tokenizer_hash(files) == loaded.info.tokenizer_hash
    assert files.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert "You are a helpful AI assistant named SmolLM" in files.chat_template
    tokenizer = files.tokenizer()
    text = "The 🔥 of 2024:\n\n  def f(x): return 'é日한'"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(("dtype", "kernel"), [("float32", "auto"), ("float32", "invariant"), ("int4", "default")])
def test_other_products_say_the_same(loaded: LoadedModel, dtype: str, kernel: LinearKernel) -> None:
    other = load_model(DEFAULT_MODEL, device="cpu", dtype=dtype, linear_kernel=kernel)
    assert other.info.dtype == ("int4/bfloat16" if dtype == "int4" else dtype)
    token_ids = loaded.tokenizer_files.tokenizer().encode("Once upon a time there was a king who").ids
    work = [
        ModelRunner(each.model, each.info.vocab_size).forward([Work(SequenceCache(), token_ids, len(token_ids))])[0]
        for each in (loaded, other)
    ]
    # Largest difference of a logit, relative to the spread of the logits: 3e-5 was seen in float32, 0.09 with 4 bits.
    difference = float((work[0] - work[1]).abs().max() / work[0].std())
    assert 0 < difference < (1e-4 if dtype == "float32" else 0.5)


def test_model_says_something_sensible(loaded: LoadedModel) -> None:
    tokenizer = loaded.tokenizer_files.tokenizer()
    prompt = (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is"
    )
    runner = ModelRunner(loaded.model, loaded.info.vocab_size)
    (logits,) = runner.forward([Work(SequenceCache(), tokenizer.encode(prompt).ids, num_logits=1)])
    assert tokenizer.decode([int(torch.argmax(logits[0]))]) == " Paris"


def test_cache_holds_what_the_catalog_says(directory: Path) -> None:
    assert find_model(DEFAULT_MODEL) == directory
    assert directory_bytes(directory) == pytest.approx(CATALOG[DEFAULT_MODEL].converted_bytes, rel=0.01)


@pytest.mark.usefixtures("loaded")
def test_loading_from_the_cache_is_quick() -> None:
    def seconds_to_load() -> float:
        start = time.perf_counter()
        load_model(DEFAULT_MODEL, device="cpu")
        return time.perf_counter() - start

    # One of three: others may be busy on the same machine.
    assert any(seconds_to_load() < SECONDS_TO_LOAD for _ in range(3))

"""Compiled passes against those by PyTorch: the same numbers, whatever lies in a batch."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from specdec.kernels.available import fused_kernels
from specdec.kernels.few_rows import pack_for_few_rows
from specdec.kernels.passes import CompiledPass, PlainPass
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, tiny_llama_with, tiny_model

LLAMAS = [name for name in ARCHITECTURES if name.startswith("llama")]


@pytest.fixture(autouse=True)
def float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is rounded, and numbers are the same to the last digits."""
    monkeypatch.setattr("specdec.kernels.few_rows.byte_linear", lambda *_: None)
    monkeypatch.setattr("specdec.kernels.few_rows.fits_int8", lambda _: False)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of passes that were made."""
    made: list[str] = []
    for kind in (CompiledPass, PlainPass):
        begin = kind.__init__

        def note(self: object, *arguments: object, begin: object = begin) -> None:
            made.append(type(self).__name__)
            begin(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(kind, "__init__", note)
    return made


def of_few_calls(name: str = "llama") -> PreTrainedModel:
    model = tiny_model(name)
    pack_for_few_rows(model)
    return model


def caches(number: int) -> list[SequenceCache]:
    pool = KVPool(None)
    return [SequenceCache(pool) for _ in range(number)]


def talk(model: PreTrainedModel) -> list[torch.Tensor]:
    """Logits of steps, windows, trees grown level by level, a step after a rollback, and of several in one pass."""
    runner = ModelRunner(model, VOCAB_SIZE)
    one, two, three = caches(3)
    found = runner.forward([Work(one, [5, 9, 3], 3), Work(two, [8, 8, 1, 70], 1)])
    found += runner.forward([Work(one, [11], 1)])
    found += runner.forward([Work(two, [1, 2, 3, 4], 4, parents=[-1, -1, 0, 2])])
    # Further nodes below ones that are in the cache, and a row of the chain before a tree.
    found += runner.forward([Work(two, [7, 8], 2, parents=[-1, -1, 0, 2, 3, 1])])
    found += runner.forward([Work(one, [6, 4, 2], 3, parents=[-1, 0])])
    one.truncate(3)
    two.keep_rows(4, [0, 2])
    found += runner.forward([Work(three, [30, 31], 2), Work(one, [12], 1), Work(two, [13, 14, 15], 3, parents=[-1, 0])])
    return found


@pytest.mark.parametrize("name", LLAMAS)
def test_compiled_passes_compute_what_transformers_does(name: str, kinds: list[str]) -> None:
    expected = talk(tiny_model(name))
    for found, wanted in zip(talk(of_few_calls(name)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert set(kinds) == {"CompiledPass"}


@pytest.mark.parametrize("head_dim", [64, 128, 80])
def test_heads_of_the_usual_sizes_have_code_of_their_own(head_dim: int, kinds: list[str]) -> None:
    model, plain = (tiny_llama_with(head_dim=head_dim) for _ in range(2))
    pack_for_few_rows(model)
    for found, wanted in zip(talk(model), talk(plain), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert set(kinds) == {"CompiledPass"}


@pytest.mark.parametrize("name", LLAMAS)
def test_so_does_pytorch_where_numba_is_missing(name: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.kernels.few_rows.fused_kernels", lambda: None)
    expected = talk(tiny_model(name))
    for found, wanted in zip(talk(of_few_calls(name)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert set(kinds) == {"PlainPass"}


def test_many_rows_are_left_to_pytorch_and_both_go_on_from_each_other(kinds: list[str]) -> None:
    text = [(7 * place) % VOCAB_SIZE for place in range(40)]

    def logits(model: PreTrainedModel) -> torch.Tensor:
        runner, (cache,) = ModelRunner(model, VOCAB_SIZE), caches(1)
        steps = [runner.forward([Work(cache, tokens, len(tokens))])[0] for tokens in ([3], text, [4], text, [5, 6])]
        return torch.cat(steps)

    torch.testing.assert_close(logits(of_few_calls()), logits(tiny_model("llama")), rtol=1e-4, atol=1e-4)
    assert kinds == ["CompiledPass", "PlainPass", "CompiledPass", "PlainPass", "CompiledPass"]


def test_many_sequences_of_few_rows_are_compiled(kinds: list[str]) -> None:
    def logits(model: PreTrainedModel) -> torch.Tensor:
        runner, many = ModelRunner(model, VOCAB_SIZE), caches(20)
        for place, cache in enumerate(many):
            runner.forward([Work(cache, [place + 3] * (1 + place % 5), 1)])
        return torch.cat(runner.forward([Work(cache, [7, place + 3], 2) for place, cache in enumerate(many)]))

    torch.testing.assert_close(logits(of_few_calls()), logits(tiny_model("llama")), rtol=1e-4, atol=1e-4)
    assert set(kinds) == {"CompiledPass"}


def test_caches_in_different_memory_are_left_to_pytorch(kinds: list[str]) -> None:
    def logits(model: PreTrainedModel) -> torch.Tensor:
        runner = ModelRunner(model, VOCAB_SIZE)
        return torch.cat(runner.forward([Work(SequenceCache(), [5, 6], 2), Work(SequenceCache(), [9], 1)]))

    torch.testing.assert_close(logits(of_few_calls()), logits(tiny_model("llama")), rtol=1e-4, atol=1e-4)
    assert kinds == ["PlainPass"]


def test_memory_that_grows_keeps_what_was_in_it() -> None:
    """A growing pool makes new tensors in the middle of a sequence."""

    def logits(model: PreTrainedModel) -> torch.Tensor:
        runner, (cache,) = ModelRunner(model, VOCAB_SIZE), caches(1)
        return torch.cat([runner.forward([Work(cache, [place % VOCAB_SIZE], 1)])[0] for place in range(150)])

    torch.testing.assert_close(logits(of_few_calls()), logits(tiny_model("llama")), rtol=1e-3, atol=1e-3)


def test_what_is_no_number_stays_none() -> None:
    model = of_few_calls()
    model.model.embed_tokens.weight.data[7] = torch.nan
    runner, (one, two) = ModelRunner(model, VOCAB_SIZE), caches(2)
    broken, whole = runner.forward([Work(one, [7], 1), Work(two, [8], 1)])
    assert bool(broken.isnan().all())
    assert bool(whole.isfinite().all())


def test_rows_that_a_layer_read_are_not_changed() -> None:
    """Whoever watches layers keeps what they read."""
    assert fused_kernels() is not None
    model = of_few_calls()
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _module, arguments: read.append((arguments[0], arguments[0].clone())))
    ModelRunner(model, VOCAB_SIZE).forward([Work(caches(1)[0], [5, 6, 7], 1)])
    assert len(read) == 2
    for rows, before in read:
        torch.testing.assert_close(rows, before, rtol=0, atol=0)

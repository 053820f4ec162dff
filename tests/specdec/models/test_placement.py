"""A model over several devices: each part and its keys and values on one, and what goes between them moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from specdec.models.errors import ModelError
from specdec.models.loading import choose_devices, load_model
from specdec.models.placement import place_parts
from specdec.models.probe import probe_ragged_batch
from specdec.models.weights import load_weights
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.models.pretended_devices import FIRST, SECOND, divided_model, pretended_devices
from tests.specdec.models.saved_models import save_tiny_model
from tests.specdec.runner.tiny_architectures import CONFIGS, VOCAB_SIZE
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

CPU = torch.device("cpu")


def llama(num_layers: int, *, tied: bool = False, vocab_size: int = 64) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )


def layers_of(placed: dict[str, torch.device]) -> list[torch.device]:
    return [device for name, device in placed.items() if name.startswith("model.layers.")]


def test_layers_are_shared_out_in_order() -> None:
    placed = place_parts(llama(8), (FIRST, SECOND))
    assert layers_of(placed) == [FIRST] * 4 + [SECOND] * 4
    around = {name: device for name, device in placed.items() if not name.startswith("model.layers.")}
    assert around == {"model.embed_tokens": FIRST, "model.rotary_emb": FIRST, "model.norm": SECOND, "lm_head": SECOND}


def test_a_large_embedding_leaves_the_first_device_fewer_layers() -> None:
    # More in the embedding, which is the output layer, too, than in all layers together.
    assert layers_of(place_parts(llama(8, tied=True, vocab_size=4000), (FIRST, SECOND))).count(FIRST) == 0
    placed = place_parts(llama(8, tied=True, vocab_size=500), (FIRST, SECOND))
    assert 0 < layers_of(placed).count(FIRST) < 4
    assert placed["lm_head"] == FIRST


def test_more_devices_than_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="3 devices cannot share 2 layers; choose fewer"):
        place_parts(llama(2), (CPU, FIRST, SECOND))


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_computed_over_two_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]()
    placed = place_parts(config, (FIRST, SECOND))
    with pretended_devices(monkeypatch):
        model = divided_model(config, placed)
        states = HiddenStates(model)
        states.watch([1, 2])
        runner = ModelRunner(model, VOCAB_SIZE, states, keeps_states=True)
        pool = KVPool(16)
        long, short, own = SequenceCache(pool), SequenceCache(pool), SequenceCache()
        prefill = Work(long, list(range(20)), num_logits=1, num_features=3, feature_states=(1, 2))
        first = runner.forward([prefill, Work(short, [5, 6, 7], num_logits=0), Work(own, [1], num_logits=1)])
        # A tree, of which a part is kept, beside a step and a sequence that is elsewhere.
        tree = Work(long, [1, 2, 3], num_logits=3, parents=[-1, 0, 0])
        second = runner.forward([tree, Work(short, [8], num_logits=1), Work(own, [2], num_logits=1)])
        long.keep_rows(20, [0, 2])
        other = SequenceCache()
        other.copy_prefix(long, 20)
        # Where tokens are chosen.
        assert {logits.device for logits in (*first, *second)} == {FIRST}
        assert prefill.features is not None
        assert prefill.features.device == FIRST
        for cache in (long, own, other):
            # What was asked for at first is there; features of each layer lie with it.
            of_devices = cache.pool.storage.bytes_by_device()
            assert of_devices.keys() == {FIRST, SECOND}
            assert sum(of_devices.values()) == cache.pool.storage.bytes_per_slot
        assert [pool.storage.read(layer, [(0, 16)])[0].device for layer in (0, 1)] == [FIRST, SECOND]


def test_a_mistake_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_devices(monkeypatch):
        here, there = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
        with pytest.raises(RuntimeError, match="device"):
            here + there
        with pytest.raises(RuntimeError, match="device"):
            here.index_copy_(0, torch.tensor([0, 1], device=SECOND), here)
        with pytest.raises(RuntimeError, match="device"):
            here[torch.tensor([0, 1], device=SECOND)]


def test_values_are_those_of_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded by transformers over two devices, of which a CPU makes one."""
    # It would move each weight again and again to where it says that it is not.
    monkeypatch.setattr("accelerate.utils.modeling.check_device_same", lambda first, second: first.type == second.type)
    model = tiny_llama()
    directory = save_tiny_model(tmp_path / "tiny", model)
    divided = load_weights(directory, model.config, torch.float32, FIRST, SECOND)
    probe_ragged_batch(divided, TINY_VOCAB_SIZE, 64)
    whole = load_weights(directory, model.config, torch.float32, CPU)
    layers = divided.get_submodule("model.layers")
    for layer in layers.children():
        # What goes into a layer is moved once, and not before each product in it.
        assert hasattr(layer, "_hf_hook")
        assert not any(hasattr(inner, "_hf_hook") for inner in layer.modules() if inner is not layer)
    works = [[Work(SequenceCache(), [3, 1, 4, 1, 5], num_logits=2), Work(SequenceCache(), [9], 1)] for _ in range(2)]
    runners = ModelRunner(whole, TINY_VOCAB_SIZE), ModelRunner(divided, TINY_VOCAB_SIZE)
    runners[1]._is_divided = True
    expected, found = (runner.forward(work) for runner, work in zip(runners, works, strict=True))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["cuda:0,cuda:0", "cuda:0,cpu", "cuda,cuda:1", "auto,cuda:1", "cuda:0,"])
def test_devices_that_cannot_share_a_model(name: str) -> None:
    with pytest.raises(ModelError, match="a model is shared by GPUs, each named once, such as cuda:0,cuda:1"):
        choose_devices(name)


def test_devices_that_share_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_devices("cuda:0,cuda:1") == (torch.device("cuda:0"), torch.device("cuda:1"))
    assert choose_devices("cuda:1") == (torch.device("cuda:1"),)
    with pytest.raises(ModelError, match="'cuda:2' was asked for and 2 CUDA devices are usable"):
        choose_devices("cuda:1,cuda:2")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_values_of_one(tmp_path: Path) -> None:
    directory = str(save_tiny_model(tmp_path / "tiny", tiny_llama()))
    one, two = (load_model(directory, device=device, dtype="float32") for device in ("cuda:0", "cuda:0,cuda:1"))
    assert {weight.device.index for weight in two.model.parameters()} == {0, 1}
    assert two.info.device == "cuda:0,cuda:1"
    assert two.info.weights_fingerprint == one.info.weights_fingerprint
    for prompt in ([3, 1, 4, 1, 5], [2]):
        (expected,), (found,) = (
            ModelRunner(each.model, TINY_VOCAB_SIZE).forward([Work(SequenceCache(), prompt, num_logits=1)])
            for each in (one, two)
        )
        assert found.device == expected.device
        assert torch.allclose(found, expected, atol=1e-5)

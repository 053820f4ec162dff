from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draft_service.training.samples import Sample, SampleStore
from specdec.models.errors import ModelError
from tests.draft_service.training.random_samples import random_samples


def same(left: Sample, right: Sample) -> bool:
    names = ["token_ids", "law_positions", "top_ids", "top_logprobs"]
    if left.features is None or right.features is None:
        assert left.features is right.features
    else:
        names.append("features")
    return (left.index, left.answer_start) == (right.index, right.answer_start) and all(
        torch.equal(getattr(left, name), getattr(right, name)) for name in names
    )


@pytest.mark.parametrize(("vocab_size", "num_states"), [(320, 0), (70_000, 0), (320, 2)])
def test_what_is_appended_is_loaded(tmp_path: Path, vocab_size: int, num_states: int) -> None:
    first = random_samples(5, vocab_size=vocab_size, num_states=num_states)
    second = random_samples(3, first_index=5, vocab_size=vocab_size, num_states=num_states)
    store = SampleStore(tmp_path / "data")
    assert store.load() == []
    returned = [*store.append(first, 1.5), *store.append(second, 2.0)]
    assert all(same(left, right) for left, right in zip(returned, [*first, *second], strict=True))
    again = SampleStore(tmp_path / "data")
    loaded = again.load()
    assert again.seconds == store.seconds == 3.5
    assert len(loaded) == 8
    assert all(same(left, right) for left, right in zip(loaded, [*first, *second], strict=True))
    assert all(sample.top_ids.dtype == torch.int32 for sample in loaded)
    again.append(first, 0.0)
    assert len(SampleStore(tmp_path / "data").load()) == 13, "a later process overwrites no shard"


def test_a_small_vocabulary_takes_two_bytes_an_id(tmp_path: Path) -> None:
    sizes = {}
    samples = random_samples(20)
    for vocab_size in (65_536, 65_537):
        store = SampleStore(tmp_path / str(vocab_size))
        samples[0].top_ids[0, 0] = vocab_size - 1
        store.append(samples, 0.0)
        sizes[vocab_size] = sum(path.stat().st_size for path in (tmp_path / str(vocab_size)).iterdir())
        assert int(SampleStore(tmp_path / str(vocab_size)).load()[0].top_ids[0, 0]) == vocab_size - 1
    num_ids = sum(sample.top_ids.numel() for sample in samples)
    assert sizes[65_537] - sizes[65_536] == pytest.approx(2 * num_ids, abs=16)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    store.append(random_samples(2), 0.0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match=r"shard-00000.safetensors is damaged; delete it"):
        SampleStore(tmp_path).load()


def test_an_unfinished_shard_is_not_read(tmp_path: Path) -> None:
    SampleStore(tmp_path).append(random_samples(2), 0.0)
    (tmp_path / "shard-00001.safetensors.partial").write_bytes(b"half")
    assert len(SampleStore(tmp_path).load()) == 2


def test_some_texts_are_kept_from_training() -> None:
    held_out = [sample.index for sample in random_samples(100) if sample.is_held_out]
    assert held_out == [0, 1, 2, 96, 97, 98]

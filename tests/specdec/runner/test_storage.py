"""Rows in slots."""

from __future__ import annotations

import pytest
import torch

from specdec.runner.storage import KVStorage


def rows(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    column = torch.tensor(numbers, dtype=torch.float32)[None, :, None]
    return column.expand(2, -1, 3), -column.expand(2, -1, 5)


def numbers(storage: KVStorage, *spans: tuple[int, int]) -> list[float]:
    keys, values = storage.read(0, spans)
    assert (keys.shape[0], keys.shape[2], values.shape[2]) == (2, 3, 5)
    assert torch.equal(keys[:, :, :1], -values[:, :, :1])
    return keys[0, :, 0].tolist()


def test_spans_are_read_in_their_order() -> None:
    storage = KVStorage(8)
    storage.write(0, *rows(1, 2, 3, 4), torch.tensor([6, 0, 1, 3]))
    assert numbers(storage, (0, 2)) == [2, 3]
    assert numbers(storage, (6, 7), (0, 2), (3, 4)) == [1, 2, 3, 4]
    assert storage.read(0, [(0, 2)])[0].data_ptr() == storage.read(0, [(0, 8)])[0].data_ptr()


def test_rows_are_moved_as_they_were_before() -> None:
    storage = KVStorage(8)
    storage.write(0, *rows(1, 2, 3), torch.tensor([0, 1, 2]))
    storage.move([0, 1], [1, 2])
    assert numbers(storage, (0, 3)) == [1, 1, 2]
    other = KVStorage()
    other.move([2, 0], [0, 1], storage)
    assert numbers(other, (0, 2)) == [2, 1]


def test_growing_keeps_what_is_there() -> None:
    storage = KVStorage()
    storage.write(0, *rows(1, 2), torch.tensor([0, 63]))
    assert storage.bytes_per_slot == 2 * (3 + 5) * 4
    storage.require(65)
    storage.write(0, *rows(3), torch.tensor([64]))
    assert numbers(storage, (0, 1), (63, 65)) == [1, 2, 3]


def test_a_pool_of_fixed_size_does_not_grow() -> None:
    storage = KVStorage(8)
    storage.require(8)
    with pytest.raises(ValueError, match="slot 8 is wanted of 8"):
        storage.require(9)


def test_keys_and_values_in_one_tensor_are_written_in_one_go() -> None:
    apart, together = KVStorage(), KVStorage()
    for slots in ([3, 0], [1, 64]):
        keys, values = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
        for storage in (apart, together):
            storage.require(max(slots) + 1)
        apart.write(0, keys, values, torch.tensor(slots))
        together.write_heads(0, torch.cat([keys, values]), torch.tensor(slots))
    together.move([64], [2])
    apart.move([64], [2])
    for found, expected in zip(together.read(0, [(0, 4), (64, 65)]), apart.read(0, [(0, 4), (64, 65)]), strict=True):
        assert torch.equal(found, expected)
    assert together.bytes_per_slot == apart.bytes_per_slot


@torch.inference_mode()
def test_what_was_moved_while_the_storage_grew_is_not_lost() -> None:
    origin, storage = KVStorage(), KVStorage()
    keys, values = torch.randn(2, 1, 3), torch.randn(2, 1, 3)
    origin.write_heads(0, torch.cat([keys, values]), torch.tensor([5]))
    # Into a storage that holds nothing yet, and into one that has become larger since.
    for slot, num_slots in ((1, 2), (70, 71)):
        storage.require(num_slots)
        storage.move([5], [slot], origin)
        storage.write_heads(0, torch.cat([values, keys]), torch.tensor([slot - 1]))
        for found, expected in zip(storage.read(0, [(slot - 1, slot + 1)]), (keys, values), strict=True):
            assert torch.equal(found[:, 1:], expected)
    assert torch.equal(storage.read(0, [(1, 2)])[0], keys)


@pytest.mark.parametrize("value_dim", [3, 5])
def test_slots_are_gathered_in_any_order(value_dim: int) -> None:
    storage = KVStorage(8)
    keys, values = torch.randn(2, 8, 3), torch.randn(2, 8, value_dim)
    storage.write(0, keys, values, torch.arange(8))
    slots = torch.tensor([5, 0, 5, 7])
    for found, expected in zip(storage.gather(0, slots), (keys, values), strict=True):
        assert torch.equal(found, expected[:, slots])
    assert storage.token_bytes(0) == 2 * (3 + value_dim) * 4

"""Who sees whom, against rules that are followed token by token."""

from __future__ import annotations

import random

import pytest
import torch

from specdec.runner.visibility import Visibility, row_depths

CPU = torch.device("cpu")


def seen(length: int, count: int, parents: list[int] | None, row: int, window: int | None) -> list[int]:
    """The tokens that a row sees; those of a sequence are counted from its start."""
    total = length + count
    start = total - len(parents or ())
    positions = [*range(total)]
    for node, parent in enumerate(parents or ()):
        positions[start + node] = positions[start + parent] + 1 if parent >= 0 else start
    token = length + row
    path = []
    while token >= start and parents:
        path.append(token)
        parent = parents[token - start]
        token = start + parent if parent >= 0 else start - 1
    path += range(token + 1)
    return sorted(each for each in path if window is None or positions[each] > positions[length + row] - window)


def random_sequence(generator: random.Random) -> tuple[int, int, list[int] | None]:
    length, count = generator.randrange(9), generator.randint(1, 6)
    # Of a tree that grew pass by pass, the first nodes are cached.
    nodes = generator.choice([0, 0, generator.randint(0, length + count)])
    return length, count, [generator.randrange(-1, node) for node in range(nodes)] or None


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_sees_what_it_should(seed: int, window: int | None) -> None:
    generator = random.Random(seed)
    sequences = [random_sequence(generator) for _ in range(5)]
    num_rows = max(count for _, count, _ in sequences) + 1
    num_tokens = max(length + count for length, count, _ in sequences) + 2
    mask = Visibility(sequences, num_rows, num_tokens).mask(window, CPU)
    assert mask.shape == (5, num_rows, num_tokens)
    for (length, count, parents), of_sequence in zip(sequences, mask, strict=True):
        for row in range(num_rows):
            # Those too many see what the last one sees; nobody sees tokens too many.
            expected = seen(length, count, parents, min(row, count - 1), window)
            assert of_sequence[row].nonzero()[:, 0].tolist() == expected


def test_siblings_are_at_one_position() -> None:
    assert row_depths(5, [-1, -1, 0]) == [0, 1, 2, 2, 3]
    # The first nodes of the tree are in the cache.
    assert row_depths(1, [-1, -1, 0]) == [-1]
    assert row_depths(3, None) == [0, 1, 2]

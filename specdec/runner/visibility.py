"""Which tokens each new row of some sequences sees: those before it, in a tree those it follows, within a window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specdec.runner.integers import Integers


def row_depths(num_rows: int, parents: list[int] | None) -> list[int]:
    """Position of each new row, relative to the end of the cache: in a tree, siblings share one."""
    if not parents:
        return list(range(num_rows))
    first = num_rows - len(parents)
    return [*range(first), *_node_depths(parents, first)][-num_rows:]


def _node_depths(parents: list[int], first: int) -> list[int]:
    """Position of each node of a tree whose roots are at `first`."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else first)
    return depths


class Visibility:
    """Who sees whom in several sequences, which are padded to equal sizes.

    A row too many sees what the last row of its sequence sees, so none sees nothing; a token too many is seen by none.

    Args:
        sequences: of each, the tokens in its cache, its new rows, and the parents of a tree (see `Segment.parents`).
        num_rows: of each sequence, padded.
        num_tokens: cached and new, of each sequence, padded.
    """

    def __init__(self, sequences: Sequence[tuple[int, int, list[int] | None]], num_rows: int, num_tokens: int) -> None:
        lengths, counts = (np.array([each[place] for each in sequences])[:, None] for place in (0, 1))
        # Of each row, (sequences, num_rows): it sees all tokens before an end, of which some are too far back.
        positions = lengths + np.minimum(np.arange(num_rows), counts - 1)
        ends = positions + 1
        columns = np.arange(num_tokens)[None]
        paths: list[int] = []
        for index, (length, count, parents) in enumerate(sequences):
            if not parents:
                continue
            if len(columns) < len(sequences):
                columns = np.repeat(columns, len(sequences), axis=0)
            start = length + count - len(parents)
            depths = _node_depths(parents, start)
            columns[index, start : length + count] = depths
            ways: list[list[int]] = []
            for node, parent in enumerate(parents):
                # A node sees what its parent sees, and itself.
                ways.append([*(ways[parent] if parent >= 0 else ()), start + node])
            for row in range(max(start - length, 0), num_rows):
                node = length + min(row, count - 1) - start
                positions[index, row], ends[index, row] = depths[node], start
                first = (index * num_rows + row) * num_tokens
                paths += [first + column for column in ways[node]]
        self._num_tokens = num_tokens
        self._numbers = Integers(positions[..., None], ends[..., None], columns[:, None], np.array(paths, np.int64))

    def mask(self, sliding_window: int | None, device: torch.device) -> torch.Tensor:
        """Which tokens each row sees; (sequences, num_rows, num_tokens), bool.

        Args:
            sliding_window: a row sees tokens at this many positions, its own included; None: at all.
            device: where the mask is wanted.
        """
        positions, ends, columns, paths = self._numbers.on(device)
        mask = torch.arange(self._num_tokens, device=device) < ends
        if len(paths):
            mask.view(-1).index_fill_(0, paths, value=True)
        if sliding_window is not None:
            mask &= columns > positions - sliding_window
        return mask

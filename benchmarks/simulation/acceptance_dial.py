"""A drafter that is right as often as is wanted."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import torch

BLOCK_POSITIONS = 200
"""Of so many positions in a row exactly the share asked for is right, so that short runs are of the same acceptance."""


class AcceptanceDial:
    """Makes a drafter that knows the target wrong now and then: it takes the second most probable token for the first.

    With the target's own weights as drafter, at temperature 0, a draft token is then right with the probability given;
    where it is not, the right one is the drafter's second choice. Above temperature 0 the noise decides as well, and
    acceptance is higher.

    Which positions go wrong follows from the seed alone. So a position is right or wrong whatever K is, and no matter
    when it is drafted, or how often: modes of the pipeline meet the same luck, and differ only in time.

    Args:
        acceptance: probability that a draft token is right.
        seed: of the draws.
    """

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        self._acceptance = acceptance
        self._seed = seed
        self._wrong_of_block = functools.lru_cache(maxsize=64)(self._draw)

    def is_right(self, position: int) -> bool:
        """Whether a token drafted for this position of a sequence is the target's."""
        block, place = divmod(position, BLOCK_POSITIONS)
        return place not in self._wrong_of_block(block)

    @torch.inference_mode()
    def turn(self, logits: Sequence[torch.Tensor], positions: Sequence[Sequence[int]]) -> None:
        """Change logits in place.

        Args:
            logits: of each sequence, (rows, vocab_size): a row for each draft token that is made of it, if any.
            positions: of the draft token behind each row.
        """
        rows = [
            row
            for piece, places in zip(logits, positions, strict=True)
            for row, position in zip(piece, places, strict=True)
            if not self.is_right(position)
        ]
        for row in rows:
            first, second = row.topk(2).indices.tolist()
            row[[first, second]] = row[[second, first]]

    def _draw(self, block: int) -> frozenset[int]:
        """Places of a block that go wrong."""
        share = (1.0 - self._acceptance) * BLOCK_POSITIONS
        # What does not come out even in one block does in the next.
        count = round(share * (block + 1)) - round(share * block)
        # Strings are hashed with SHA-512 here, the same in every process.
        places = random.Random(f"{self._seed} {block}").sample(range(BLOCK_POSITIONS), count)
        return frozenset(places)

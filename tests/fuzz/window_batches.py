"""Windows in columns as a hostile orchestrator sends them."""

from __future__ import annotations

import random

from specdec.v1 import target_pb2
from tests.tiny_models import TINY_VOCAB_SIZE

COLUMNS = [field.name for field in target_pb2.WindowBatch.DESCRIPTOR.fields]
_MANY = (1025, 4090, 4096, 5000)


def spoil_one(rng: random.Random, batch: target_pb2.WindowBatch) -> None:
    """Make a window of a batch wrong in a way that is no other's fault."""
    index = rng.randrange(len(batch.rounds))
    way = rng.randrange(8)
    if way == 0:
        batch.sequence_ids[index] = rng.choice((rng.randbytes(16), b"", batch.sequence_ids[-1]))
    elif way == 1:
        batch.epochs[index] = rng.choice((0, batch.epochs[index] - 1, batch.epochs[index] + 1, (1 << 32) - 1))
    elif way == 2:
        batch.rounds[index] = rng.choice((0, batch.rounds[index] - 1, batch.rounds[index] + 7, (1 << 32) - 1))
    elif way == 3:
        batch.base_lengths[index] = rng.choice((0, batch.base_lengths[index] + 1, (1 << 32) - 1))
    elif way == 4:
        batch.checksums[index] ^= 1 << rng.randrange(32)
    elif way == 5 and batch.token_ids:
        batch.token_ids[rng.randrange(len(batch.token_ids))] = rng.choice((TINY_VOCAB_SIZE, (1 << 32) - 1))
    elif way == 6:
        # All draft tokens become those of one window, which has too many then, or has those of others.
        total = sum(batch.num_draft_tokens)
        batch.num_draft_tokens[:] = [total if place == index else 0 for place in range(len(batch.num_draft_tokens))]
    else:
        repeat(batch, len(batch.rounds) + 1)


def spoil_all(rng: random.Random, batch: target_pb2.WindowBatch) -> None:
    """Make a batch wrong as a whole: columns of other lengths, or too many windows."""
    name = rng.choice(COLUMNS)
    column = getattr(batch, name)
    way = rng.randrange(4)
    if way == 0:
        batch.ClearField("sequence_ids")
    elif way == 1 and len(column):
        del column[rng.randrange(len(column)) :]
    elif way == 2 and len(column):
        column.extend(list(column)[: rng.choice((1, 40))])
    else:
        repeat(batch, 5000)


def repeat(batch: target_pb2.WindowBatch, count: int) -> None:
    """Ask for the windows again and again, until there are so many; draft tokens as well."""
    length = len(batch.rounds)
    token_ids, counts = list(batch.token_ids), list(batch.num_draft_tokens)
    for name in COLUMNS:
        column = getattr(batch, name)
        values = list(column)
        if name != "token_ids":
            column[:] = [values[place % length] for place in range(count)]
    batch.token_ids[:] = token_ids * (count // length) + token_ids[: sum(counts[: count % length])]


def many_of_nobody(rng: random.Random, batch: target_pb2.WindowBatch) -> None:
    """So many windows that their refusals alone may be more than a peer may leave unread."""
    repeat(batch, rng.choice(_MANY))
    batch.sequence_ids[:] = [rng.randbytes(16) for _ in batch.sequence_ids]

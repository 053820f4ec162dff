"""Verdicts of many sequences in columns: the same as alone, and what becomes of those that are malformed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.links.mailbox import LinkLost
from orchestrator.links.stream import MalformedMessage
from orchestrator.links.target import TargetLink
from orchestrator.links.window_batches import single_verdicts
from specdec.telemetry import names
from specdec.v1 import target_pb2
from target_service.answer import Answer, Timings, batched
from tests.orchestrator.counting import Counting
from tests.orchestrator.links.test_target import linked
from tests.orchestrator.links.watched_target import OPENED, WatchedTarget, ask, several
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import table_token

COLUMNS = [field.name for field in target_pb2.VerdictBatch.DESCRIPTOR.fields if field.is_repeated]

numbers = st.integers(0, (1 << 31) - 1)


@st.composite
def answers_of_one_pass(draw: st.DrawFn) -> list[Answer]:
    num_sequences, num_rows = draw(numbers), draw(numbers)
    has_features = draw(st.booleans())
    answers: list[Answer] = []
    for _ in range(draw(st.integers(1, 12))):
        judged = draw(st.integers(0, 40))
        accepted = draw(st.sampled_from([0, judged, draw(st.integers(0, judged))]))
        size = draw(st.sampled_from([0, 1, 1000, 300_000, 1 << 20, 2_000_000])) if has_features else 0
        answers.append(
            Answer(
                draw(st.binary(min_size=16, max_size=16)),
                draw(numbers),
                draw(numbers),
                draw(numbers),
                judged,
                list(range(accepted)),
                draw(numbers),
                accepted == judged,
                Timings(draw(numbers), draw(numbers), num_sequences, num_rows),
                bytes([len(answers) + 1]) * size,
            )
        )
    return answers


@given(answers_of_one_pass())
def test_verdicts_in_columns_are_what_they_would_be_alone(answers: list[Answer]) -> None:
    batches = list(batched(answers))
    events = [event for batch in batches for event in single_verdicts(batch.verdicts)]
    assert events == [answer.event() for answer in answers]
    sizes = [[len(features) for features in batch.verdicts.features] for batch in batches]
    assert all(len(batch) == 1 or sum(batch) <= 1 << 20 for batch in sizes)
    # And no more of them than there have to be: what a batch begins with had no room in the one before.
    for before, after in pairwise(batches):
        assert sum(map(len, before.verdicts.features)) + len((*after.verdicts.features, b"")[0]) > 1 << 20


def a_batch() -> target_pb2.VerdictBatch:
    timings = Timings(1, 2, 3, 4)
    answers = [Answer(bytes([n]) * 16, 1, 2, 9, 4, [0, 1], 5, False, timings, b"some") for n in range(3)]
    (event,) = batched(answers)
    return event.verdicts


def shorten(name: str) -> Callable[[target_pb2.VerdictBatch], object]:
    return lambda batch: getattr(batch, name).pop()


def lengthen(name: str) -> Callable[[target_pb2.VerdictBatch], object]:
    def spoil(batch: target_pb2.VerdictBatch) -> None:
        column = getattr(batch, name)
        # Features are optional: the fake gives none.
        column.append(column[-1] if column else b"some")

    return spoil


def set_in(name: str, value: int) -> Callable[[target_pb2.VerdictBatch], object]:
    return lambda batch: getattr(batch, name).__setitem__(-1, value)


def spoil_numbers(batch: target_pb2.VerdictBatch) -> None:
    """Would take gigabytes."""
    batch.num_judged_tokens[-1] = batch.num_accepted_tokens[-1] = (1 << 32) - 1


SPOILT: dict[str, Callable[[target_pb2.VerdictBatch], object]] = {
    **{f"{name} shorter": shorten(name) for name in COLUMNS},
    **{f"{name} longer": lengthen(name) for name in COLUMNS},
    "more accepted than judged": set_in("num_accepted_tokens", 5),
    "no accepted column": lambda batch: batch.ClearField("num_accepted_tokens"),
    "a length that no field holds": set_in("base_lengths", (1 << 32) - 1),
    "more accepted than memory holds": spoil_numbers,
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_cannot_be_is_malformed(how: str) -> None:
    batch = a_batch()
    assert len(list(single_verdicts(batch))) == 3
    SPOILT[how](batch)
    with pytest.raises(MalformedMessage):
        list(single_verdicts(batch))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("rounds shorter", "its columns are not equally long"),
        ("features longer", "its columns are not equally long"),
        ("more accepted than judged", "it accepts 5 and judges 0 tokens"),
    ],
)
async def test_a_malformed_batch_ends_the_stream_and_the_link_comes_back(
    how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = WatchedTarget()
    problems: list[str] = []
    async with serving(target) as port:
        link = TargetLink(f"127.0.0.1:{port}", Counting().metrics, lambda: problems.append(link.problem))
        link.start()
        try:
            assert await link.available(5)
            sequences = await several(link, 3)
            target.spoil = SPOILT[how]
            for sequence in sequences[1:]:
                ask(sequence)
            await until(lambda: len(problems) > 1)
            assert problems[1].startswith(f"it sent a malformed message: {reason}")
            # The one that was not asked about, and the last one, whose verdict was not read.
            for sequence in (sequences[0], sequences[-1]):
                with pytest.raises(LinkLost):
                    ask(sequence, round_index=2)
            target.spoil = lambda batch: None
            assert await link.available(5)
            (again,) = await several(link, 1)
            ask(again)
            assert await again.answered(5.0)
            assert again.verdict().next_token_id == table_token(OPENED)
        finally:
            await link.close()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


async def test_a_verdict_for_a_sequence_that_nobody_knows_harms_no_other() -> None:
    def add_stranger(batch: target_pb2.VerdictBatch) -> None:
        """In front of the others."""
        for name in COLUMNS:
            column: Any = getattr(batch, name)
            column.extend(column[:1])
        batch.sequence_ids[0] = secrets.token_bytes(16)

    target, counting = WatchedTarget(), Counting()
    target.spoil = add_stranger
    async with linked(target, counting) as link:
        sequences = await several(link, 3)
        for sequence in sequences:
            ask(sequence)
        for sequence in sequences:
            assert await sequence.answered(5.0)
            assert sequence.verdict().next_token_id == table_token(OPENED)
        assert counting.by_attribute(names.STALE_EVENTS) == {"target": 1}

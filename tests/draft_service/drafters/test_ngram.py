"""Prompt lookup against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from draft_service.drafters.ngram import NgramDrafter, NgramIndex
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import model_pb2
from tests.draft_service.driving import Client, DraftConnection, Engine

LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))
TEXTS = st.lists(st.integers(0, 3), max_size=40)


def search(token_ids: Sequence[int], min_length: int, max_length: int, count: int) -> list[int]:
    """What followed the longest suffix the last time that it occurred."""
    text = list(token_ids)
    for length in range(min(max_length, len(text)), min_length - 1, -1):
        suffix = text[len(text) - length :]
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == suffix:
                while len(text) < len(token_ids) + count:
                    text.append(text[end])
                    end += 1
                return text[len(token_ids) :]
    return []


@given(TEXTS, LENGTHS, st.integers(0, 9))
def test_proposal_is_what_followed_the_longest_suffix_last(
    text: list[int], lengths: tuple[int, int], count: int
) -> None:
    index = NgramIndex(*lengths)
    index.update(text)
    assert index.propose(text, count) == search(text, *lengths, count)


@given(TEXTS, st.lists(st.integers(0, 5), max_size=20), LENGTHS)
def test_index_can_be_kept_up_in_any_steps(text: list[int], steps: list[int], lengths: tuple[int, int]) -> None:
    index = NgramIndex(*lengths)
    known = 0
    for step in [*steps, len(text)]:
        known = min(known + step, len(text))
        index.update(text[:known])
        assert index.propose(text[:known], 3) == search(text[:known], *lengths, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4, 1]),
        ([7, 7, 7], [7, 7, 7, 7, 7]),
        ([1, 2, 1], []),
        ([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2], [3, 9, 1, 2, 4]),
    ],
)
def test_examples(text: list[int], expected: list[int]) -> None:
    index = NgramIndex(2, 3)
    index.update(text)
    assert index.propose(text, 5) == expected


def make_engine(**changes: int) -> Engine:
    limits = {"min_length": 2, "max_length": 3, "max_num_draft_tokens": 8, "max_num_sequences": 4, **changes}
    return Engine(NgramDrafter(**limits))


def test_drafter_follows_its_sequence_through_the_rounds() -> None:
    client = Client(make_engine(), [1, 2, 3, 4, 1, 2])
    assert list(client.open(4).token_ids) == [3, 4, 1, 2]
    assert list(client.commit(2, 9, 4).token_ids) == []
    assert client.token_ids == [1, 2, 3, 4, 1, 2, 3, 4, 9]
    assert list(client.commit(0, 3, 4).token_ids) == []
    assert list(client.commit(0, 4, 2).token_ids) == [9, 3]
    for _ in range(20):
        proposal = client.commit(len(client.proposed), 5, 3)
        assert list(proposal.token_ids) == search(client.token_ids, 2, 3, 3)


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES)
def test_drafts_are_deterministic_under_every_rule(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    proposal = Client(make_engine(), [1, 2, 3, 1, 2], rule=rule).open(2)
    assert list(proposal.token_ids) == [3, 1]
    assert list(proposal.distributions) == []
    assert (proposal.timings.batch_sequences, proposal.timings.batch_rows) == (1, 0)


def test_any_token_id_will_do() -> None:
    largest = 2**32 - 1
    client = Client(make_engine(), [largest, 0, 5, largest, 0])
    assert list(client.open(2).token_ids) == [5, largest]
    client.commit(2, largest, 2)


def test_sequences_do_not_see_each_others_text() -> None:
    engine = make_engine()
    Client(engine, [1, 2, 3, 1, 2]).open(2)
    assert list(Client(engine, [9, 1, 2]).open(2).token_ids) == []


def test_nothing_is_kept_of_a_sequence_that_ended() -> None:
    drafter = NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=9)
    engine = Engine(drafter)
    connection = DraftConnection()
    clients = [Client(engine, [1, 2, 1], connection=connection) for _ in range(3)]
    for client in clients:
        client.open(2)
    clients[0].open(2)
    engine.tell(connection, clients[0].close_command())
    assert len(drafter._indexes) == 2
    engine.tell(connection, None)
    assert drafter._indexes == {}


def test_advertises_that_it_fits_any_tokenizer() -> None:
    info = NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=9).info
    assert (info.vocab_size, info.tokenizer_hash, info.max_context_length) == (0, "", 0)
    assert (info.max_num_draft_tokens, info.max_num_sequences) == (4, 9)
    assert tuple(info.acceptance_rules) == ACCEPTANCE_RULES


def test_lengths_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="min_length 3 is above max_length 2"):
        NgramDrafter(min_length=3, max_length=2, max_num_draft_tokens=4, max_num_sequences=9)

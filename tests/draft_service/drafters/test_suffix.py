"""Lookup by the longest match: in a request's own tokens, and in what its tenant was answered before."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from draft_service.drafters import suffix_lookup
from draft_service.drafters.making import make_drafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from draft_service.settings import DraftSettings
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.driving import Client, DraftConnection, Engine
from tests.plain_decoding import GREEDY, SAMPLED

OWN, MEMORY = draft_pb2.DRAFT_SOURCE_SUFFIX, draft_pb2.DRAFT_SOURCE_MEMORY
NOT_COUPLED = [rule for rule in ACCEPTANCE_RULES if rule != model_pb2.ACCEPTANCE_RULE_COUPLED]
ANNE, BERT = b"a" * 32, b"b" * 32
LARGEST = 2**32 - 1


def make_engine(
    *,
    min_match_length: int = 1,
    tokens_per_match: float = 1.0,
    memory_tokens: int = 1000,
    memory_tenants: int = 4,
) -> Engine:
    memory = TenantMemory(max_tokens=memory_tokens, max_tenants=memory_tenants)
    lookup = SuffixLookup(memory, min_match_length=min_match_length, tokens_per_match=tokens_per_match)
    return Engine(SuffixDrafter(lookup, max_num_draft_tokens=16, max_num_sequences=64))


def drafter_of(engine: Engine) -> SuffixDrafter:
    drafter = engine.engine._drafter
    assert isinstance(drafter, SuffixDrafter)
    return drafter


def answered(engine: Engine, tenant: bytes, prompt: Sequence[int], output: Sequence[int]) -> None:
    """A request that ends after this output."""
    client = Client(engine, prompt, tenant=tenant)
    engine.ask(client.connection, client.open_command(0))
    for token in output:
        engine.ask(client.connection, client.commit_command(0, token, 0))
    client.close()


def draft(engine: Engine, prompt: Sequence[int], tenant: bytes = b"", count: int = 8) -> tuple[list[int], int]:
    """Tokens and source of the first proposal of a request."""
    client = Client(engine, prompt, tenant=tenant)
    proposal = client.open(count)
    client.engine.tell(client.connection, None)
    return list(proposal.token_ids), proposal.source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([], []),
        ([4, 5], []),
        # The longest match wins, not the last one.
        ([1, 2, 3, 9, 2, 4, 1, 2], [3, 9]),
        # Of equally long ones what came most often, then what came last.
        ([1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 2], [5, 1]),
        ([1, 5, 2, 1, 6, 2, 7, 1], [6]),
        # A longer match is trusted with a longer draft.
        ([1, 9, 3, 4, 5, 2, 1], [9]),
        ([1, 2, 9, 3, 4, 5, 1, 2], [9, 3]),
        ([1, 2, 3, 9, 3, 4, 5, 1, 2, 3], [9, 3, 4]),
        # Where the text ends, it goes on with its own copy.
        ([7, 7, 7, 7], [7, 7, 7]),
        ([1, 2, 3, 1, 2, 3, 1, 2], [3, 1, 2, 3, 1]),
    ],
)
def test_examples(text: list[int], expected: list[int]) -> None:
    tokens, source = draft(make_engine(), [8, *text])
    assert tokens == expected
    assert source == (OWN if expected else draft_pb2.DRAFT_SOURCE_UNSPECIFIED)


@pytest.mark.parametrize(
    ("min_match_length", "tokens_per_match", "count", "expected"),
    [(2, 1, 8, 2), (3, 1, 8, 0), (1, 0.5, 8, 1), (1, 1.5, 8, 3), (1, 0.4, 8, 0), (1, 4, 8, 8), (1, 4, 5, 5)],
)
def test_how_far_a_match_is_trusted_is_a_setting(
    min_match_length: int, tokens_per_match: float, count: int, expected: int
) -> None:
    engine = make_engine(min_match_length=min_match_length, tokens_per_match=tokens_per_match)
    tokens, _ = draft(engine, [8, 1, 2, *range(10, 30), 1, 2], count=count)
    assert tokens == list(range(10, 10 + expected))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 5), max_size=20))
def test_a_sequence_is_kept_up_in_any_steps(text: list[int], steps: list[int]) -> None:
    engine = make_engine(tokens_per_match=4)
    client = Client(engine, text[:1])
    client.open(4)
    while len(client.token_ids) < len(text):
        accepted = 0
        while (
            accepted < min(len(client.proposed), steps[len(client.token_ids) % len(steps)] if steps else 9)
            and len(client.token_ids) + accepted + 1 < len(text)
            and client.proposed[accepted] == text[len(client.token_ids) + accepted]
        ):
            accepted += 1
        client.commit(accepted, text[len(client.token_ids) + accepted], 4)
        assert client.token_ids == text[: len(client.token_ids)]
        fresh = Client(make_engine(tokens_per_match=4), client.token_ids)
        assert client.proposed == list(fresh.open(4).token_ids)


def test_a_long_prompt_is_read_bit_by_bit_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_lookup, "_MAX_READ_TOKENS", 10)
    engine = make_engine()
    connection = DraftConnection()
    long = Client(engine, [*range(40, 70), 41, 42], connection=connection)
    short = Client(engine, [1, 2, 1], connection=connection)
    engine.tell(connection, long.open_command(4), short.open_command(4))
    assert engine.engine.step()
    (event,) = connection.take()
    assert list(short.take(event, 4).token_ids) == [2]
    assert engine.engine.step()
    assert engine.engine.step()
    assert not engine.engine.step()
    (event,) = connection.take()
    assert list(long.take(event, 4).token_ids) == [43, 44]


def test_any_token_id_will_do() -> None:
    assert draft(make_engine(), [LARGEST, 0, 5, LARGEST, 0]) == ([5, LARGEST], OWN)


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES)
def test_drafts_are_deterministic_under_every_rule(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    proposal = Client(make_engine(), [1, 2, 3, 1, 2], SAMPLED, rule=rule).open(2)
    assert list(proposal.token_ids) == [3, 1]
    assert list(proposal.distributions) == []
    assert (proposal.timings.batch_sequences, proposal.timings.batch_rows) == (1, 0)


def test_the_same_tenant_is_helped_by_its_past_output() -> None:
    engine = make_engine()
    answered(engine, ANNE, [8], [1, 2, 3, 4, 5])
    assert draft(engine, [9, 1, 2], ANNE) == ([3, 4], MEMORY)


def test_a_prompt_is_not_left_behind() -> None:
    engine = make_engine()
    answered(engine, ANNE, [1, 2, 3, 4, 5], [6, 7])
    assert draft(engine, [9, 1, 2], ANNE)[0] == []


def test_nothing_crosses_between_tenants_or_from_or_to_nobody() -> None:
    prompt = [9, 1, 2]
    everybody = {b"", ANNE, BERT, b"\0" * 32}
    for tenant in everybody:
        engine = make_engine()
        answered(engine, tenant, prompt, [3, 4, 1, 2, 3, 4])
        for other in everybody - ({tenant} if tenant else set()):
            assert draft(engine, prompt, other) == ([], draft_pb2.DRAFT_SOURCE_UNSPECIFIED)
        # Those who were there meanwhile left nothing in the wrong place.
        assert draft(engine, prompt, tenant)[0] == ([3, 4] if tenant else [])


def test_sequences_that_are_open_do_not_see_each_other() -> None:
    engine = make_engine()
    connection = DraftConnection()
    first = Client(engine, [1, 2, 3], tenant=ANNE, connection=connection)
    first.open(4)
    first.commit(0, 4, 4)
    assert list(Client(engine, [9, 1, 2], tenant=ANNE, connection=connection).open(4).token_ids) == []


def test_the_longer_match_wins_and_the_requests_own_if_they_are_equal() -> None:
    engine = make_engine()
    answered(engine, ANNE, [8], [1, 2, 3, 4, 5])
    assert draft(engine, [2, 7, 6, 1, 2], ANNE) == ([3, 4], MEMORY)
    assert draft(engine, [1, 2, 7, 6, 1, 2], ANNE) == ([7, 6], OWN)
    assert draft(engine, [0, 1, 2, 7, 6, 0, 1, 2], ANNE) == ([7, 6, 0], OWN)


def test_what_others_leave_while_a_request_runs_is_found() -> None:
    engine = make_engine()
    client = Client(engine, [9, 1, 2], tenant=ANNE)
    assert list(client.open(4).token_ids) == []
    answered(engine, ANNE, [8], [1, 2, 3, 4])
    assert list(client.commit(0, 3, 4).token_ids) == [4]
    answered(engine, ANNE, [8], [2, 3, 6, 7])
    answered(engine, ANNE, [8], [2, 3, 6, 7])
    # Now more often, but the longer match still wins.
    client.round += 1
    assert list(client.open(4).token_ids) == [4]


def test_a_match_in_the_memory_goes_on_from_round_to_round() -> None:
    engine = make_engine()
    answered(engine, ANNE, [8], [*range(100, 140), 7])
    client = Client(engine, [9, 100], tenant=ANNE)
    client.open(16)
    while len(client.token_ids) < 24:
        length = len(client.token_ids)
        assert client.proposed == list(range(99 + length, 99 + length + min(16, length - 1)))
        client.commit(min(2, len(client.proposed)), 99 + length + min(2, len(client.proposed)), 16)


def test_where_an_output_ended_a_shorter_match_goes_on() -> None:
    engine = make_engine()
    answered(engine, ANNE, [8], [3, 6])
    answered(engine, ANNE, [8], [1, 2, 3])
    assert draft(engine, [9, 1, 2, 3], ANNE) == ([6], MEMORY)


@pytest.mark.parametrize("rule", NOT_COUPLED)
def test_where_random_numbers_judge_a_draft_it_follows_no_other_request(
    rule: model_pb2.AcceptanceRule.ValueType,
) -> None:
    # The other request may have had the same seed; see DraftSequence.may_follow_others.
    engine = make_engine()
    answered(engine, ANNE, [8], [1, 2, 3, 4, 5])
    assert list(Client(engine, [9, 1, 2], SAMPLED, rule=rule, tenant=ANNE).open(4).token_ids) == []
    assert list(Client(engine, [9, 1, 2], GREEDY, rule=rule, tenant=ANNE).open(4).token_ids) == [3, 4]
    # What it leaves may well help those that may follow it.
    left = Client(engine, [8], SAMPLED, rule=rule, tenant=ANNE)
    engine.ask(left.connection, left.open_command(0))
    for token in (21, 22, 23):
        engine.ask(left.connection, left.commit_command(0, token, 0))
    left.close()
    assert draft(engine, [9, 21, 22], ANNE) == ([23], MEMORY)


def test_a_sequence_that_is_opened_again_leaves_its_output_once() -> None:
    engine = make_engine()
    client = Client(engine, [8], tenant=ANNE)
    engine.ask(client.connection, client.open_command(0))
    for token in (1, 2, 3):
        engine.ask(client.connection, client.commit_command(0, token, 0))
    engine.ask(client.connection, client.open_command(0))
    for token in (4, 5, 6):
        engine.ask(client.connection, client.commit_command(0, token, 0))
    client.close()
    (text,) = drafter_of(engine)._lookup._memory.recall(ANNE)
    assert [token for token in text._token if token >= 0] == [1, 2, 3, 4, 5, 6]


def test_nothing_is_kept_of_a_sequence_that_ended_without_a_tenant() -> None:
    engine = make_engine()
    connection = DraftConnection()
    clients = [Client(engine, [1, 2, 1], connection=connection) for _ in range(3)]
    for client in clients:
        client.open(2)
    clients[0].open(2)
    clients[0].close()
    lookup = drafter_of(engine)._lookup
    assert len(lookup._states) == 2
    engine.tell(connection, None)
    assert lookup._states == {}
    assert lookup._memory._tenants == {}


def test_a_stream_that_breaks_leaves_its_outputs_behind() -> None:
    engine = make_engine()
    client = Client(engine, [8, 1], tenant=ANNE)
    client.open(2)
    for token in (2, 3):
        client.commit(0, token, 2)
    engine.tell(client.connection, None)
    assert draft(engine, [9, 2], ANNE) == ([3], MEMORY)


def test_it_is_made_from_the_settings_and_fits_any_tokenizer() -> None:
    settings = DraftSettings(
        drafter="suffix", suffix_min=3, suffix_tokens_per_match=2, max_num_draft_tokens=4, max_num_sequences=9
    )
    drafter = make_drafter(settings)
    assert (drafter.info.vocab_size, drafter.info.tokenizer_hash, drafter.info.max_context_length) == (0, "", 0)
    assert (drafter.info.max_num_draft_tokens, drafter.info.max_num_sequences) == (4, 9)
    assert tuple(drafter.info.acceptance_rules) == ACCEPTANCE_RULES
    assert list(Client(Engine(drafter), [1, 2, 5, 1, 2]).open(4).token_ids) == []
    assert list(Client(Engine(drafter), [1, 2, 3, 5, 1, 2, 3]).open(4).token_ids) == [5, 1, 2, 3]

"""A model and lookup together: who makes a window, and that neither disturbs the other."""

from __future__ import annotations

import pytest

from draft_service.drafters import suffix_lookup
from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.driving import Client, DraftConnection, Engine, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.tiny_models import tiny_llama

MODEL, OWN, MEMORY = draft_pb2.DRAFT_SOURCE_MODEL, draft_pb2.DRAFT_SOURCE_SUFFIX, draft_pb2.DRAFT_SOURCE_MEMORY
COUPLED, REJECTION = model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_REJECTION
LOOP = [31, 32, 33, 34, 35, 36, 37, 38] * 2
"""A prompt that repeats itself, so that lookup is confident of how it goes on."""
PROMPT = [5, 9, 200, 17, 44]
K = 4
ANNE = b"a" * 32


class CombinedEngine(Engine):
    """The engine with a tiny language model and lookup."""

    def __init__(self, *, model_cost: float = 1.1, max_batch_rows: int = 64) -> None:
        self.of_model = ModelEngine(max_batch_rows=max_batch_rows)
        self.runner = self.of_model.runner
        lookup = SuffixLookup(TenantMemory(max_tokens=1000, max_tenants=4), min_match_length=1, tokens_per_match=2)
        self.drafter = CombinedDrafter(self.of_model.drafter, lookup, model_cost=model_cost)
        super().__init__(self.drafter)


@pytest.fixture
def engine() -> CombinedEngine:
    return CombinedEngine()


def commit_true(client: Client, truth: list[int]) -> draft_pb2.Proposal:
    """Commit what a target whose text is `truth` would accept, and take the next proposal."""
    length = len(client.token_ids)
    accepted = 0
    while accepted < len(client.proposed) and client.proposed[accepted] == truth[length + accepted]:
        accepted += 1
    return client.commit(accepted, truth[length + accepted], K)


def test_a_text_that_repeats_itself_is_looked_up_and_the_model_does_not_run(engine: CombinedEngine) -> None:
    client = Client(engine, LOOP)
    engine.ask(client.connection, client.open_command(0))
    assert engine.runner.passes == [[len(LOOP)]]
    proposal = client.commit(0, LOOP[0], K)
    for _ in range(10):
        assert proposal.source == OWN
        assert list(proposal.token_ids) == [LOOP[(len(client.token_ids) + ahead) % 8] for ahead in range(K)]
        assert (proposal.timings.batch_sequences, proposal.timings.batch_rows) == (1, 0)
        proposal = commit_true(client, LOOP * 10)
    assert engine.runner.passes == [[len(LOOP)]]


@pytest.mark.parametrize("num_draft_tokens", [0, 2])
def test_lookup_may_give_more_than_a_model_is_asked_for(engine: CombinedEngine, num_draft_tokens: int) -> None:
    client, other = Client(engine, LOOP), Client(engine, PROMPT)
    for each in (client, other):
        engine.ask(each.connection, each.open_command(0))
    proposals = []
    for each, token in ((client, LOOP[0]), (other, 77)):
        command = each.commit_command(0, token, num_draft_tokens)
        command.commit.num_lookup_tokens = 6
        (event,) = engine.ask(each.connection, command)
        proposals.append(each.take(event, 6))
    assert list(proposals[0].token_ids) == LOOP[1:7]
    assert len(proposals[1].token_ids) == num_draft_tokens


def test_a_text_that_does_not_is_the_models(engine: CombinedEngine) -> None:
    client = Client(engine, PROMPT, SAMPLED)
    proposal = client.open(K)
    alone = Client(ModelEngine(), PROMPT, SAMPLED).open(K)
    assert proposal.source == alone.source == MODEL
    assert proposal.token_ids == alone.token_ids
    assert proposal.timings.batch_rows == len(PROMPT)


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_after_rounds_of_lookup_the_model_guesses_as_if_it_had_never_paused(
    rule: model_pb2.AcceptanceRule.ValueType, params: SamplingParams
) -> None:
    engine = CombinedEngine()
    client = Client(engine, LOOP, params, rule=rule)
    engine.ask(client.connection, client.open_command(0))
    proposal = client.commit(0, LOOP[0], K)
    sources = []
    # The loop, then something new, then the loop again, and so on.
    truth = [*LOOP, *LOOP[:8], 101, 102, 103, *LOOP[:8], 104, 105, 106, 107, *LOOP]
    while len(client.token_ids) < len(truth) - K - 1:
        sources.append(proposal.source)
        if proposal.source == MODEL:
            fresh = Client(ModelEngine(), client.token_ids, params, rule=rule)
            fresh.prompt_length = client.prompt_length
            expected = fresh.open(K)
            assert proposal.token_ids == expected.token_ids
            assert len(proposal.distributions) == len(expected.distributions)
        else:
            assert not proposal.distributions
        proposal = commit_true(client, truth)
    assert {MODEL, OWN} <= set(sources)
    assert sources.index(MODEL) > 0
    assert OWN in sources[sources.index(MODEL) :]


def test_a_model_that_is_right_is_preferred_to_a_lookup_that_is_not(engine: CombinedEngine) -> None:
    # The target has the model's own weights, so the model is always right.
    truth = plain_text(tiny_llama(), LOOP, SAMPLED, 120)
    client = Client(engine, LOOP, SAMPLED)
    proposal = client.open(K)
    sources = []
    while len(client.token_ids) < 110:
        sources.append(proposal.source)
        proposal = commit_true(client, truth)
    assert set(sources[-10:]) == {MODEL}
    num_rounds = len(sources)
    assert 110 - len(LOOP) > 0.9 * (K + 1) * (num_rounds - 3)


def test_a_lookup_that_is_right_is_preferred_to_a_model_that_is_not(engine: CombinedEngine) -> None:
    # A loop that the model knows nothing of, with one token in four new: behind it, lookup has nothing to offer.
    truth = [*LOOP[:6], *(token for new in range(100, 140) for token in (*LOOP[:3], new))]
    client = Client(engine, truth[:6], SAMPLED)
    proposal = client.open(K)
    sources = []
    while len(client.token_ids) < len(truth) - K - 1:
        sources.append(proposal.source)
        proposal = commit_true(client, truth)
    assert sources[-20:] == [MODEL, OWN] * 10 or sources[-20:] == [OWN, MODEL] * 10


def test_what_others_in_the_service_have_shown_counts_by_the_coupled_rule_only() -> None:
    def first_source(rule: model_pb2.AcceptanceRule.ValueType) -> int:
        engine = CombinedEngine()
        # Sequences whose text never goes on as it did, and whose model is right.
        for start in range(40, 60):
            prompt = [start, 7, 8, 9, start, 7, 8, 9]
            truth = plain_text(tiny_llama(), prompt, SAMPLED, 40)
            client = Client(engine, prompt, SAMPLED, rule=COUPLED)
            client.open(K)
            while len(client.token_ids) < 30:
                commit_true(client, truth)
            client.close()
        return Client(engine, [70, 7, 8, 9, 70, 7, 8, 9], SAMPLED, rule=rule).open(K).source

    assert Client(CombinedEngine(), [70, 7, 8, 9, 70, 7, 8, 9], SAMPLED).open(K).source == OWN
    assert first_source(COUPLED) == MODEL
    assert first_source(REJECTION) == OWN


def test_past_output_of_the_tenant_is_offered_too(engine: CombinedEngine) -> None:
    client = Client(engine, PROMPT, tenant=ANNE)
    engine.ask(client.connection, client.open_command(0))
    for token in [*LOOP, *LOOP, *LOOP]:
        engine.ask(client.connection, client.commit_command(0, token, 0))
    client.close()
    again = Client(engine, [300, *LOOP[:8]], tenant=ANNE)
    proposal = again.open(K)
    assert (list(proposal.token_ids), proposal.source) == (LOOP[:4], MEMORY)
    assert Client(engine, [300, *LOOP[:8]]).open(K).source == MODEL


def test_lookups_are_answered_before_the_model_runs(engine: CombinedEngine) -> None:
    connection = DraftConnection()
    slow, quick = Client(engine, PROMPT, connection=connection), Client(engine, LOOP, connection=connection)
    engine.tell(connection, slow.open_command(K), quick.open_command(K))
    assert engine.engine.step()
    assert engine.runner.passes == []
    (event,) = connection.take()
    assert quick.take(event, K).source == OWN
    engine.work()
    (event,) = connection.take()
    assert slow.take(event, K).source == MODEL


def test_an_outcome_that_comes_before_the_proposal_teaches_nothing(engine: CombinedEngine) -> None:
    client = Client(engine, PROMPT, SAMPLED)
    client.open(K)
    engine.tell(client.connection, client.commit_command(1, 17, K))
    assert engine.engine.step()
    before = engine.drafter._service.model.num_rejected, engine.drafter._service.model.num_accepted
    engine.tell(client.connection, client.commit_command(0, 18, K))
    assert (engine.drafter._service.model.num_rejected, engine.drafter._service.model.num_accepted) == before
    engine.work()
    (event,) = client.connection.take()
    assert client.take(event, K).source == MODEL


def test_a_long_prompt_is_prefilled_and_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_lookup, "_MAX_READ_TOKENS", 80)
    engine = CombinedEngine(max_batch_rows=10)
    client = Client(engine, list(range(10, 310)))
    engine.tell(client.connection, client.open_command(0))
    for _ in range(4):
        assert engine.engine.step()
    assert len(engine.runner.passes) == 4
    state = engine.drafter._lookup._states[id(engine.engine._sequences[client.connection][client.sequence_id])]
    assert state.text.num_tokens == 300


def test_nothing_is_kept_of_a_sequence_that_ended(engine: CombinedEngine) -> None:
    client = Client(engine, LOOP)
    client.open(K)
    client.close()
    assert engine.drafter._states == {}
    assert engine.of_model.drafter._states == {}
    assert engine.drafter._lookup._states == {}


def test_it_advertises_the_model(engine: CombinedEngine) -> None:
    assert isinstance(engine.drafter._model, CausalLMDrafter)
    assert engine.drafter.info is engine.drafter._model.info


def test_a_model_that_is_asked_for_what_lookup_finds_says_at_once_that_it_is_nothing() -> None:
    engine = ModelEngine()
    client = Client(engine, [5, 9, 200])
    client.open(2)
    engine.runner.passes.clear()
    command = client.commit_command(0, 17, 0)
    command.commit.num_lookup_tokens = 4
    (event,) = engine.ask(client.connection, command)
    assert list(client.take(event, 4).token_ids) == []
    assert engine.runner.passes == []
    assert len(client.commit(0, 18, 3).token_ids) == 3

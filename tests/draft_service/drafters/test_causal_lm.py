"""A language model as drafter: it guesses what it should, runs no token twice, and never more than it has to."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import grpc
import pytest
import torch

from specdec.runner.cache import SequenceCache
from specdec.runner.runner import Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.driving import Client, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

PROMPT = (5, 9, 200)
NUM_ROUNDS = 50
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
RULES = pytest.mark.parametrize(
    "rule", [model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK]
)


@functools.cache
def text_of(is_greedy: bool) -> list[int]:
    """What a target with the same weights writes."""
    return plain_text(tiny_llama(), PROMPT, GREEDY if is_greedy else SAMPLED, len(PROMPT) + 4 * NUM_ROUNDS + 10)


def cache_of(client: Client) -> SequenceCache:
    assert isinstance(client.engine, ModelEngine)
    sequence = client.engine.engine._sequences[client.connection][client.sequence_id]
    return client.engine.drafter._states[id(sequence)].cache


@BOTH
def test_a_drafter_with_the_targets_weights_is_always_right(params: SamplingParams) -> None:
    # B26: every draft token is accepted, so each round ends with a bonus token that follows a token never run.
    text = text_of(params.is_greedy)
    engine = ModelEngine()
    client = Client(engine, PROMPT, params)
    proposal = client.open(1)
    passes = engine.runner.passes
    assert passes == [[len(PROMPT)]]
    for index in range(NUM_ROUNDS):
        drafted = len(proposal.token_ids)
        length = len(client.token_ids)
        assert list(proposal.token_ids) == text[length : length + drafted]
        assert cache_of(client).length == length + drafted - 1
        passes.clear()
        num_draft_tokens = 1 + index % 5
        proposal = client.commit(drafted, text[length + drafted], num_draft_tokens)
        assert len(proposal.token_ids) == num_draft_tokens
        # Two rows to catch up, the last draft and the bonus, and then a row for each further token.
        assert passes == [[2], *[[1]] * (num_draft_tokens - 1)]
        assert cache_of(client).length == len(client.token_ids) + num_draft_tokens - 1


@BOTH
def test_after_a_rejection_the_cache_ends_where_the_drafts_were_still_right(params: SamplingParams) -> None:
    engine = ModelEngine()
    client = Client(engine, PROMPT, params)
    client.open(4)
    for num_accepted, rows in ((0, 1), (2, 1), (4, 2), (1, 1), (0, 1), (3, 1), (4, 2)):
        before = len(client.token_ids)
        engine.tell(client.connection, client.commit_command(num_accepted, 17, 4))
        committed = before + num_accepted + 1
        assert cache_of(client).length == min(before + 3, committed - 1)
        engine.runner.passes.clear()
        engine.work()
        (event,) = client.connection.take()
        client.take(event, 4)
        assert engine.runner.passes == [[rows], [1], [1], [1]]
        assert cache_of(client).length == committed + 3


@BOTH
@RULES
def test_whatever_was_accepted_the_next_proposal_is_that_of_a_fresh_sequence(
    params: SamplingParams, rule: model_pb2.AcceptanceRule.ValueType
) -> None:
    # B04, for the draft service: rollback leaves nothing behind.
    client = Client(ModelEngine(), PROMPT, params, rule=rule)
    client.open(4)
    for index, num_accepted in enumerate((0, 2, 4, 1, 0, 4, 3, 0)):
        found = client.commit(num_accepted, 40 + index, 4)
        fresh = Client(ModelEngine(), client.token_ids, params, rule=rule)
        fresh.prompt_length = len(PROMPT)
        expected = fresh.open(4)
        assert list(found.token_ids) == list(expected.token_ids)
        for ours, theirs in zip(found.distributions, expected.distributions, strict=True):
            assert list(ours.token_ids) == list(theirs.token_ids)
            assert list(ours.weights) == pytest.approx(list(theirs.weights), abs=2)


@BOTH
def test_the_cache_is_right_after_every_round(params: SamplingParams) -> None:
    client = Client(ModelEngine(), PROMPT, params)
    client.open(3)
    for num_accepted in (0, 2, 3, 1, 0):
        client.commit(num_accepted, 17, 3)
        cache = cache_of(client)
        known = [*client.token_ids, *client.proposed]
        length = cache.length
        assert isinstance(client.engine, ModelEngine)
        (logits,) = client.engine.runner.forward([Work(cache, known[length:], 1)])
        cache.truncate(length)
        torch.testing.assert_close(logits[0], plain_logits(client.engine.model, known)[-1], atol=1e-4, rtol=0)


def test_rules_apply_along_the_drafted_path() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0, no_repeat_ngram_size=2, repetition_penalty=1.3)
    prompt = [5] * 6
    text = plain_text(tiny_llama(), prompt, params, 30)
    client = Client(ModelEngine(), prompt, params)
    assert list(client.open(8).token_ids) == text[6:14]
    client = Client(ModelEngine(), text[:10], params)
    client.prompt_length = 6
    assert list(client.open(8).token_ids) == text[10:18]


@pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
@pytest.mark.parametrize("params", [SAMPLED, SamplingParams(temperature=0.8, seed=7, frequency_penalty=-1.0)])
def test_tokens_are_sampled_from_the_law_that_travels_with_them(
    rule: model_pb2.AcceptanceRule.ValueType, params: SamplingParams
) -> None:
    # B01: truncated, renormalised and rounded first, and then sampled from.
    model = tiny_llama()
    client = Client(ModelEngine(model, max_law_size=5), PROMPT, params, rule=rule)
    proposal = client.open(6)
    assert len(proposal.distributions) == len(proposal.token_ids) == 6
    chooser = TokenChooser(params, len(PROMPT), torch.device("cpu"))
    draws = CounterDraws(params.seed, len(PROMPT))
    for index, (token, message) in enumerate(zip(proposal.token_ids, proposal.distributions, strict=True)):
        path = list(proposal.token_ids[:index])
        law = DraftLaw.from_proto(message, token, TINY_VOCAB_SIZE)
        assert 1 <= len(law.weights) <= 5
        logits = plain_logits(model, [*PROMPT, *path])[-1]
        expected = chooser.draft_law(logits, PROMPT, path, 5)
        assert list(law.weights) == list(expected.weights)
        assert list(law.weights.values()) == pytest.approx(list(expected.weights.values()), abs=2)
        assert law.lost_mass == pytest.approx(expected.lost_mass, abs=1e-4)
        assert token == law.sample(draws, len(PROMPT) + index)


def test_greedy_drafts_for_the_other_rules_are_certain() -> None:
    client = Client(ModelEngine(), PROMPT, GREEDY, rule=model_pb2.ACCEPTANCE_RULE_REJECTION)
    proposal = client.open(4)
    assert list(proposal.token_ids) == text_of(True)[3:7]
    assert [list(law.token_ids) for law in proposal.distributions] == [[token] for token in proposal.token_ids]


def test_coupled_drafts_need_no_laws() -> None:
    assert list(Client(ModelEngine(), PROMPT, SAMPLED).open(4).distributions) == []


@pytest.mark.parametrize(
    ("length", "num_drafts"), [(27, 4), (28, 4), (29, 4), (30, 3), (31, 2), (32, 1), (33, 0), (60, 0)]
)
def test_no_draft_beyond_the_context(length: int, num_drafts: int) -> None:
    # B30: past the draft's context the round goes without drafts; nothing is run for it.
    engine = ModelEngine(max_context_length=32)
    client = Client(engine, [7] * length, SAMPLED)
    proposal = client.open(4)
    assert len(proposal.token_ids) == num_drafts
    assert sum(map(sum, engine.runner.passes)) == (length + num_drafts - 1 if num_drafts else 0)
    # And so it goes on, round after round.
    num_drafts = len(client.commit(0, 8, 4).token_ids)
    assert num_drafts == max(0, min(4, 32 - length))
    assert bool(num_drafts) == (length < 32)


def test_a_prefill_beyond_the_context_is_not_begun() -> None:
    engine = ModelEngine(max_context_length=32)
    client = Client(engine, [7] * 33)
    assert engine.ask(client.connection, client.open_command(0)) == []
    assert engine.runner.passes == []


def test_rules_that_leave_no_token_end_the_draft() -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=(5, 6, 7), no_repeat_ngram_size=1)
    client = Client(ModelEngine(), (5,), params)
    assert sorted(client.open(4).token_ids) == [6, 7]
    assert list(client.commit(2, 8, 4).token_ids) == []


def test_a_model_that_gives_no_numbers_ends_the_draft_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ModelEngine()
    broken, sound = Client(engine, PROMPT, SAMPLED), Client(engine, PROMPT, SAMPLED)
    forward = engine.runner.forward

    def forward_badly(batch: list[Work]) -> list[torch.Tensor]:
        first, *others = forward(batch)
        return [torch.full_like(first, torch.nan) if len(engine.runner.passes) == 3 else first, *others]

    monkeypatch.setattr(engine.runner, "forward", forward_badly)
    engine.tell(broken.connection, broken.open_command(4))
    engine.tell(sound.connection, sound.open_command(4))
    engine.work()
    (event,) = broken.connection.take()
    assert list(broken.take(event, 4).token_ids) == text_of(False)[3:5]
    (event,) = sound.connection.take()
    assert list(sound.take(event, 4).token_ids) == text_of(False)[3:7]
    # The sequence is not lost by it.
    assert list(broken.commit(2, text_of(False)[5], 3).token_ids) == text_of(False)[6:9]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_draft() -> None:
    engine = ModelEngine(max_batch_rows=10)
    running, long = Client(engine, PROMPT, GREEDY), Client(engine, list(range(2, 42)), GREEDY)
    running.open(2)
    engine.runner.passes.clear()
    engine.tell(long.connection, long.open_command(2))
    engine.tell(running.connection, running.commit_command(2, 7, 4))
    engine.work()
    assert engine.runner.passes == [[2, 8], [1, 9], [1, 9], [1, 9], [5], [1]]
    (event,) = long.connection.take()
    assert list(long.take(event, 2).token_ids) == plain_text(engine.model, long.token_ids, GREEDY, 42)[40:]
    (event,) = running.connection.take()
    assert list(running.take(event, 4).token_ids) == plain_text(engine.model, running.token_ids, GREEDY, 10)[6:]


def tree_command(
    client: Client, num_accepted: int, next_token: int, nodes: Sequence[int] = ()
) -> draft_pb2.DraftCommand:
    """Tell an outcome and ask for a tree of 6 nodes in 2 steps."""
    proposed = client.proposed
    client.proposed = [proposed[node] for node in nodes] if nodes else proposed
    command = client.commit_command(num_accepted, next_token, 6)
    command.commit.max_draft_steps = 2
    command.commit.accepted_nodes.extend(nodes)
    return command


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_tree_has_runners_up_and_goes_on_from_whatever_node_was_accepted(params: SamplingParams) -> None:
    engine = ModelEngine()
    client = Client(engine, [5, 9, 200, 17], params)
    engine.ask(client.connection, client.open_command(0))
    nodes: list[int] = []
    for turn in range(8):
        engine.runner.passes.clear()
        accepted = len(nodes)
        (event,) = engine.ask(client.connection, tree_command(client, accepted, 40 + turn, nodes))
        proposal = client.take(event, 6)
        assert len(proposal.token_ids) == len(proposal.parents) == 6
        assert len(engine.runner.passes) <= 2
        alone = Client(ModelEngine(), client.token_ids, params)
        alone.prompt_length = client.prompt_length
        chain = alone.open(2).token_ids
        depths: list[int] = []
        for parent in proposal.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        num_chain = next((n for n, parent in enumerate(proposal.parents) if parent != n - 1), 6)
        assert list(proposal.token_ids[:num_chain]) == list(chain[:num_chain])
        # In turns: nothing, a runner-up of the first step, the chain, and a runner-up of the last one that has some.
        last = max(range(6), key=lambda node: (proposal.parents[node], node))
        path = [last] if proposal.parents[last] < 0 else [*range(proposal.parents[last] + 1), last]
        nodes = [[], [5 if proposal.parents[5] < 0 else num_chain], list(range(num_chain)), path][turn % 4]
        if nodes and proposal.parents[nodes[0]] >= 0:
            nodes = []


@pytest.mark.parametrize("nodes", [[1], [0, 0], [5, 1], [0, 6]])
def test_accepted_nodes_that_are_no_path_are_refused(nodes: list[int]) -> None:
    engine = ModelEngine()
    client = Client(engine, [5, 9, 200, 17])
    client.open(3)
    command = client.commit_command(0, 17, 2)
    command.commit.num_accepted_tokens = len(nodes)
    command.commit.committed_length += len(nodes)
    command.commit.accepted_nodes.extend(nodes)
    code, reason = client.refused(command)
    assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "not a path" in reason


def test_steps_are_timed_without_what_is_caught_up_on() -> None:
    engine = ModelEngine()
    client = Client(engine, [5, 9, 200, 17] * 20)
    forward = engine.runner.forward

    def slow(batch: Sequence[Work]) -> list[torch.Tensor]:
        time.sleep(0.005 * sum(len(work.token_ids) for work in batch))
        return forward(batch)

    engine.runner.forward = slow  # type: ignore[method-assign]
    assert client.open(1).timings.step_microseconds == 0, "a prompt is no step"
    timings = client.commit(0, 5, 3).timings
    assert 5_000 <= timings.step_microseconds < 100_000
    engine.ask(client.connection, *(client.commit_command(0, 40 + turn, 0) for turn in range(30)))
    later = client.commit(0, 6, 1).timings
    assert later.compute_microseconds >= 150_000
    assert later.step_microseconds == timings.step_microseconds

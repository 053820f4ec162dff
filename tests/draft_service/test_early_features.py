"""Features of a prompt that are told while the target still prefills: the draft prefills beside it."""

from __future__ import annotations

import pytest
import torch

from draft_service.drafters.ngram import NgramDrafter
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.driving import Client, Engine
from tests.draft_service.feature_drafts import FeatureEngine, random_features, wire
from tests.plain_decoding import GREEDY, SAMPLED

PROMPT = [(7 * place + 3) % 250 for place in range(90)]
INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9


def told(client: Client, start: int, end: int, *, epoch: int = 0) -> draft_pb2.DraftCommand:
    """Features of the tokens from `start` on."""
    features = wire(states()[start:end])
    message = draft_pb2.DraftFeatures(
        epoch=epoch or client.epoch, told=model_pb2.FeaturesTold(end=end, features=features)
    )
    return draft_pb2.DraftCommand(sequence_id=client.sequence_id, features=message)


def states() -> torch.Tensor:
    """Of the prompt."""
    return random_features(len(PROMPT), 1)


def lengths(events: list[draft_pb2.DraftEvent]) -> list[int]:
    """What the draft says that it has run."""
    assert all(event.WhichOneof("event") == "prefilled" for event in events)
    return [event.prefilled.length for event in events]


def in_one_piece(params: SamplingParams) -> list[int]:
    """The first proposal of a draft that learns of all features with the commit."""
    client = Client(FeatureEngine(), PROMPT, params)
    client.engine.ask(client.connection, client.open_command(0))
    client.features = wire(states())
    return list(client.commit(0, 17, 4).token_ids)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_what_was_told_is_run_at_once_and_the_proposal_is_that_of_all_features(params: SamplingParams) -> None:
    engine = FeatureEngine()
    client = Client(engine, PROMPT, params)
    assert not engine.ask(client.connection, client.open_command(0))
    assert not engine.runner.passes, "nothing can be run before features are told"
    assert lengths(engine.ask(client.connection, told(client, 0, 40))) == [40]
    assert lengths(engine.ask(client.connection, told(client, 40, 70))) == [70]
    assert [rows for (rows,) in engine.runner.passes] == [40, 30]
    engine.runner.passes.clear()
    client.features = wire(states()[70:])
    assert list(client.commit(0, 17, 4).token_ids) == in_one_piece(params)
    # What was not told yet, the next token, and a step for each further draft token.
    assert [rows for (rows,) in engine.runner.passes] == [21, 1, 1, 1]


def test_parts_that_wait_are_run_together_and_answered_once() -> None:
    engine = FeatureEngine()
    client = Client(engine, PROMPT)
    engine.ask(client.connection, client.open_command(0))
    assert lengths(engine.ask(client.connection, told(client, 0, 20), told(client, 20, 50))) == [50]
    assert [rows for (rows,) in engine.runner.passes] == [50]


def test_the_commit_does_not_wait_for_them() -> None:
    engine = FeatureEngine(max_batch_rows=16)
    client = Client(engine, PROMPT)
    engine.ask(client.connection, client.open_command(0))
    engine.tell(client.connection, told(client, 0, 70))
    engine.engine.step()
    client.features = wire(states()[70:])
    (event,) = engine.ask(client.connection, client.commit_command(0, 17, 4))
    assert list(client.take(event, 4).token_ids) == in_one_piece(GREEDY)


def test_a_prompt_that_is_in_memory_is_not_run_again() -> None:
    engine = FeatureEngine()
    for client in (Client(engine, PROMPT), Client(engine, PROMPT)):
        engine.runner.passes.clear()
        engine.ask(client.connection, client.open_command(0))
        engine.ask(client.connection, told(client, 0, 40), told(client, 40, 80))
        num_run = sum(rows for (rows,) in engine.runner.passes)
        client.features = wire(states()[80:])
        assert list(client.commit(0, 17, 4).token_ids) == in_one_piece(GREEDY)
        client.close()
    assert num_run == 0


def test_what_has_no_meaning_is_refused_and_what_is_late_is_dropped() -> None:
    engine = FeatureEngine()
    client = Client(engine, PROMPT)
    engine.ask(client.connection, client.open_command(0))
    engine.ask(client.connection, client.open_command(0))
    assert not engine.ask(client.connection, told(client, 0, 10, epoch=1))
    code, reason = client.refused(told(client, 0, 10, epoch=3))
    assert code == FAILED_PRECONDITION

    engine.ask(client.connection, client.open_command(0))
    beyond = told(client, 0, 10)
    beyond.features.told.end = len(PROMPT) + 1
    code, reason = client.refused(beyond)
    assert code == INVALID_ARGUMENT
    assert "90 are committed" in reason

    engine.ask(client.connection, client.open_command(0))
    cut = told(client, 0, 10)
    cut.features.told.features = cut.features.told.features[:-1]
    code, reason = client.refused(cut)
    assert code == INVALID_ARGUMENT
    assert "bytes" in reason


def test_a_drafter_that_reads_none_refuses_them() -> None:
    client = Client(
        Engine(NgramDrafter(min_length=1, max_length=3, max_num_draft_tokens=8, max_num_sequences=2)), PROMPT
    )
    client.engine.ask(client.connection, client.open_command(0))
    code, reason = client.refused(told(client, 0, 10))
    assert code == INVALID_ARGUMENT
    assert "reads no features" in reason

"""A draft that reads features guesses what a slow reference without any cache does, whatever came and went."""

from __future__ import annotations

import random

import grpc
import pytest
import torch

from specdec.sampling.params import SamplingParams
from tests.draft_service.driving import Client
from tests.draft_service.feature_drafts import FeatureEngine, SlowDraft, random_features, wire
from tests.plain_decoding import GREEDY, SAMPLED

PROMPT = [(11 * place + 5) % 300 for place in range(37)]
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
NONE = random_features(0, 0)


class Pair:
    """A client, and what its drafts should be."""

    def __init__(self, engine: FeatureEngine, params: SamplingParams, prompt: list[int] = PROMPT) -> None:
        self.client = Client(engine, prompt, params)
        self.slow = SlowDraft(self.client)

    def begin(self, features: torch.Tensor, count: int = 4) -> None:
        """As the orchestrator does: the open asks for nothing, the first verdict brings features of the prompt."""
        assert self.client.engine.ask(self.client.connection, self.client.open_command(0)) == []
        self.round(0, features, count)

    def tell(self, num_accepted: int, features: torch.Tensor, count: int, next_token: int = 77) -> None:
        self.client.features = wire(features)
        self.client.engine.tell(self.client.connection, self.client.commit_command(num_accepted, next_token, count))
        self.slow.take(features, num_accepted)

    def take(self, count: int) -> None:
        (event,) = self.client.connection.take()
        assert list(self.client.take(event, count).token_ids) == self.slow.drafts(count)

    def round(self, num_accepted: int, features: torch.Tensor, count: int = 4, next_token: int = 77) -> None:
        self.tell(num_accepted, features, count, next_token)
        self.client.engine.work()
        self.take(count)


@BOTH
def test_after_partial_and_full_acceptance(params: SamplingParams) -> None:
    engine = FeatureEngine()
    pair = Pair(engine, params)
    pair.begin(random_features(37, 1))
    # The prompt's rows and the first token's, and three steps: features of a prompt come when it is prefilled.
    assert engine.runner.passes == [[38], [1], [1], [1]]
    for step, num_accepted in enumerate((0, 2, 4, 1, 4, 3, 0)):
        engine.runner.passes.clear()
        pair.round(num_accepted, random_features(num_accepted + 1, 2 + step), next_token=step)
        # What was accepted, and the token before it, is computed again from the target's states.
        assert engine.runner.passes == [[num_accepted + 2], [1], [1], [1]]


def test_features_matter() -> None:
    drafts = []
    for seed in (1, 2):
        pair = Pair(FeatureEngine(), GREEDY)
        pair.begin(random_features(37, seed))
        drafts.append(pair.client.proposed)
    assert drafts[0] != drafts[1]


@BOTH
@pytest.mark.parametrize("num_known", [0, 1, 5])
def test_of_a_prompt_that_was_cached_at_the_target_there_are_few(params: SamplingParams, num_known: int) -> None:
    pair = Pair(FeatureEngine(), params)
    pair.begin(random_features(num_known, 3))
    pair.round(4, random_features(5, 4))
    pair.round(1, random_features(2, 5))


@BOTH
def test_with_features_missing_now_and_then(params: SamplingParams) -> None:
    generator = random.Random(4)
    pair = Pair(FeatureEngine(), params)
    pair.begin(random_features(37, 1))
    for step in range(14):
        count = 1 + step % 5
        num_accepted = generator.randint(0, len(pair.client.proposed))
        num_features = generator.choice([0, 0, 1, num_accepted + 1])
        pair.round(num_accepted, random_features(num_features, step), count, next_token=step)


@BOTH
def test_after_its_memory_was_taken(params: SamplingParams) -> None:
    engine = FeatureEngine(max_batch_rows=16)
    pair = Pair(engine, params)
    pair.begin(random_features(37, 1))
    for step, num_accepted in enumerate((2, 4, 0, 3)):
        pair.round(num_accepted, random_features(num_accepted + 1, step), next_token=step)
        engine.lose_cache(pair.client)
        pair.slow.lose()


def test_memory_taken_in_the_middle_of_a_window() -> None:
    engine = FeatureEngine()
    pair = Pair(engine, SAMPLED)
    pair.begin(random_features(37, 1))
    pair.tell(2, random_features(3, 2), count=5)
    for _ in range(3):
        engine.engine.step()
    engine.lose_cache(pair.client)
    engine.work()
    # The guesses are lost with them: the first drafts are run again, with nothing before them.
    drafted = pair.slow.drafts(3)
    pair.slow.lose()
    (event,) = pair.client.connection.take()
    found = list(pair.client.take(event, 5).token_ids)
    assert found == [*drafted, *pair.slow.drafts(2, drafted)]
    pair.round(5, random_features(6, 3))


def test_only_the_last_features_are_kept() -> None:
    engine = FeatureEngine(max_feature_tokens=10)
    pair = Pair(engine, GREEDY)
    pair.begin(random_features(10, 1))
    pair.round(4, random_features(5, 2))
    pair.round(2, random_features(3, 3))
    engine.lose_cache(pair.client)
    pair.slow.lose()
    kept = sorted(pair.slow.features)[-8:]
    pair.slow.features = {position: pair.slow.features[position] for position in kept}
    pair.round(0, random_features(1, 4))


def test_many_sequences_in_one_pass() -> None:
    generator = random.Random(7)
    engine = FeatureEngine()
    pairs = [Pair(engine, GREEDY if place % 2 else SAMPLED, [place, *PROMPT[: 3 * place + 2]]) for place in range(6)]
    for place, pair in enumerate(pairs):
        pair.begin(random_features(generator.choice([0, 2, 3 * place + 3]), place))
    for step in range(6):
        engine.runner.passes.clear()
        counts = [1 + (step + place) % 4 for place in range(6)]
        for place, (pair, count) in enumerate(zip(pairs, counts, strict=True)):
            num_accepted = generator.randint(0, len(pair.client.proposed))
            features = random_features(generator.choice([0, num_accepted + 1, num_accepted + 1]), 10 * step + place)
            pair.tell(num_accepted, features, count, next_token=place)
        engine.work()
        assert max(map(len, engine.runner.passes)) == 6
        for pair, count in zip(pairs, counts, strict=True):
            pair.take(count)


def test_a_sequence_opened_again_goes_on_without_features_of_what_was_before() -> None:
    engine = FeatureEngine()
    pair = Pair(engine, SAMPLED)
    pair.begin(random_features(37, 1))
    pair.round(2, random_features(3, 2))
    engine.tell(pair.client.connection, pair.client.close_command())
    pair.slow = SlowDraft(pair.client)
    # The blocks of the prompt that were made with all features are found again: two, of 16 tokens.
    pair.slow.rows = list(random_features(37, 1)[:32, -1].float())
    (event,) = engine.ask(pair.client.connection, pair.client.open_command(4))
    assert list(pair.client.take(event, 4).token_ids) == pair.slow.drafts(4)
    pair.round(3, random_features(4, 3))


@pytest.mark.parametrize(("num_known", "num_found"), [(37, 32), (36, 0), (0, 0)])
def test_only_blocks_made_with_all_features_are_shared(num_known: int, num_found: int) -> None:
    engine = FeatureEngine()
    known = random_features(37, 1)
    first = Pair(engine, GREEDY)
    first.begin(known[37 - num_known :])
    engine.runner.passes.clear()
    second = Pair(engine, SAMPLED)
    # It has all features itself, and may take over what was made with all, not what was made without.
    second.begin(known)
    assert engine.runner.passes[0] == [38 - num_found]


def test_a_block_that_ends_with_a_guess_is_not_shared() -> None:
    engine = FeatureEngine()
    # The first token fills the second block, and the target has not run it.
    Pair(engine, GREEDY, PROMPT[:31]).begin(random_features(31, 1))
    engine.runner.passes.clear()
    second = Pair(engine, GREEDY, [*PROMPT[:31], 77, 5, 6])
    second.begin(torch.cat([random_features(31, 1), random_features(3, 2)]))
    assert engine.runner.passes[0] == [35 - 16]


def test_rows_of_drafts_are_never_shared() -> None:
    engine = FeatureEngine()
    first = Pair(engine, GREEDY, PROMPT[:30])
    first.begin(random_features(30, 1), count=8)
    # All drafts are right, and 39 tokens fill two blocks; but nobody says what the target had in mind at them.
    drafted = first.client.proposed
    first.round(8, NONE)
    engine.runner.passes.clear()
    second = Pair(engine, GREEDY, [*PROMPT[:30], 77, *drafted, 77, 5])
    second.begin(random_features(41, 1))
    assert engine.runner.passes[0] == [42 - 16]


@pytest.mark.parametrize("data", [b"1", bytes(63), bytes(3 * 64), b"\xff" * 64])
def test_hostile_features_cost_the_sequence_and_no_other(data: bytes) -> None:
    engine = FeatureEngine(max_feature_tokens=2)
    hostile, sound = Pair(engine, GREEDY, [9]), Pair(engine, GREEDY)
    for pair in (hostile, sound):
        pair.begin(random_features(1, 1))
    hostile.client.features = data
    code, message = hostile.client.refused(hostile.client.commit_command(1, 5, 4))
    assert code == INVALID
    assert "features" in message
    sound.round(1, random_features(2, 2))

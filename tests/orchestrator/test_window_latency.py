"""The choice of K where messages take time and drafting is hidden behind verification."""

from __future__ import annotations

import itertools
import random

import pytest

from orchestrator.pipeline import Pipeline, PipelineMode
from orchestrator.round_costs import RoundCosts
from orchestrator.rounds import Round
from orchestrator.window_size import FixedWindowSize, MeasuredWindowSize, SharedExperience, WindowSize
from specdec.forward_costs import ForwardCosts
from specdec.planning.pipeline import Pipeline as Formula
from specdec.planning.pipeline import RoundParts
from specdec.v1 import draft_pb2, model_pb2
from tests.orchestrator.made_rounds import made_round

LIMIT = 16
STEP_SECONDS = 0.003
PASS_SECONDS = {1: 0.030, 17: 0.034}
DRAFT_NETWORK_SECONDS = 0.001
JITTER = 0.3
"""Each round's network takes so much more or less."""


class Bench:
    """Rounds of one request over a link, each of the duration that the formula of its mode gives.

    Args:
        mode: of the pipeline.
        rtt_seconds: between orchestrator and target.
        hit_probability: of what is drafted ahead.
    """

    def __init__(self, mode: PipelineMode, rtt_seconds: float, hit_probability: float) -> None:
        self.rtt_seconds = rtt_seconds
        self.hit_probability = hit_probability
        self._mode = mode
        self._pipeline = Pipeline(mode)
        self.experience = SharedExperience(RoundCosts(self._pipeline.hiding))
        self.experience.announce(
            model_pb2.ModelInfo(
                forward_costs=[
                    model_pb2.ForwardCost(rows=rows, microseconds=round(1e6 * seconds))
                    for rows, seconds in PASS_SECONDS.items()
                ]
            )
        )
        self._passes = ForwardCosts(PASS_SECONDS.items())
        self._random = random.Random(5)
        self.seconds = self.tokens = 0.0

    @property
    def pace(self) -> float:
        return self.tokens / self.seconds

    def run(self, size: WindowSize, acceptance: float, num_tokens: float) -> list[int]:
        """Returns the K of each round."""
        chosen: list[int] = []
        end = self.tokens + num_tokens
        while self.tokens < end:
            count = size.choose().model
            accepted = 0
            while accepted < count and self._random.random() < acceptance:
                accepted += 1
            size.observe(self._round(count, accepted))
            self.tokens += accepted + 1
            chosen.append(count)
        return chosen

    def _round(self, count: int, accepted: int) -> Round:
        network = self.rtt_seconds * self._random.uniform(1 - JITTER, 1 + JITTER)
        is_hit = count > 0 and self._mode != "off" and self._random.random() < self.hit_probability
        verify = self._passes.seconds(count + 1)
        drafting = count * STEP_SECONDS
        draft_network = DRAFT_NETWORK_SECONDS if count else 0.0
        parts = RoundParts(drafting, verify, network, draft_network)
        mode = self._mode if is_hit and self._mode != "auto" else "off"
        self.seconds += Formula(mode, 1.0 if is_hit else 0.0).round_seconds(parts)
        outcome = draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
        if count and self._mode != "off":
            outcome = draft_pb2.AHEAD_OUTCOME_HIT if is_hit else draft_pb2.AHEAD_OUTCOME_MISS
            proposal = draft_pb2.Proposal(token_ids=[1], ahead=outcome)
            self._pipeline.observe(proposal, verify + network, was_asked=True)
        hidden = is_hit and self._mode == "candidates"
        done = made_round(
            count,
            accepted,
            verify_seconds=verify,
            draft_seconds=0.0 if is_hit else drafting,
            step_seconds=STEP_SECONDS if count else 0.0,
            # Of what was under way before the round began there is nothing left to wait for.
            network_seconds=0.0 if hidden else network,
            draft_network_seconds=draft_network,
            ahead=outcome,
        )
        if hidden:
            done.judged.verdict.candidate = 1
        return done


def best_pace(mode: PipelineMode, rtt_seconds: float, hits: float, acceptance: float) -> float:
    paces = []
    for count in range(LIMIT + 1):
        bench = Bench(mode, rtt_seconds, hits)
        bench.run(FixedWindowSize(count), acceptance, 1500)
        paces.append(bench.pace)
    return max(paces)


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("rtt_seconds", [0.0005, 0.02, 0.08])
@pytest.mark.parametrize(("mode", "hits"), [("off", 0.0), ("ahead", 0.2), ("ahead", 0.9), ("candidates", 0.6)])
def test_it_is_about_as_good_as_the_best_fixed_k(
    mode: PipelineMode, hits: float, rtt_seconds: float, acceptance: float
) -> None:
    bench = Bench(mode, rtt_seconds, hits)
    for _ in range(5):
        bench.run(MeasuredWindowSize(LIMIT, bench.experience), acceptance, 300)
    assert bench.pace >= 0.9 * best_pace(mode, rtt_seconds, hits, acceptance)


def test_what_is_hidden_makes_longer_windows_worth_while() -> None:
    """Which only a rule that knows of it can see: steps and passes take the same in both."""
    sizes = {}
    modes: tuple[tuple[PipelineMode, float], ...] = ("off", 0.0), ("ahead", 0.95)
    for mode, hits in modes:
        bench = Bench(mode, 0.0005, hits)
        chosen = bench.run(MeasuredWindowSize(LIMIT, bench.experience), 0.8, 600)
        sizes[mode] = sum(chosen[50:]) / len(chosen[50:])
    assert sizes["ahead"] > 1.2 * sizes["off"]


@pytest.mark.parametrize("mode", ["off", "ahead", "candidates"])
def test_k_follows_a_round_trip_that_changes_and_does_not_swing(mode: PipelineMode) -> None:
    bench = Bench(mode, 0.005, 0.6)
    size = MeasuredWindowSize(LIMIT, bench.experience)
    bench.run(size, 0.7, 200)
    means = []
    for rtt_seconds in (0.005, 0.08, 0.005, 0.08):
        bench.rtt_seconds = rtt_seconds
        chosen = bench.run(size, 0.7, 400)
        settled = chosen[60:]
        changes = sum(before != after for before, after in itertools.pairwise(settled))
        assert changes <= len(settled) / 4, f"{settled}"
        assert 0 not in settled
        means.append(sum(settled) / len(settled))
    assert min(means[1], means[3]) > max(means[0], means[2])


@pytest.mark.parametrize("rtt_seconds", [0.0005, 0.02])
@pytest.mark.parametrize("mode", ["off", "ahead", "candidates"])
def test_an_adversarial_prompt_costs_little_and_is_left_when_it_ends(mode: PipelineMode, rtt_seconds: float) -> None:
    bench = Bench(mode, rtt_seconds, 0.8)
    bench.run(MeasuredWindowSize(LIMIT, bench.experience), 0.8, 600)
    size = MeasuredWindowSize(LIMIT, bench.experience)
    bench.run(size, 0.8, 100)
    bench.seconds = bench.tokens = 0.0
    # Nothing that is drafted is right, so neither is anything drafted ahead.
    bench.hit_probability = 0.0
    chosen = bench.run(size, 0.0, 200)
    assert 0 in chosen[:10]
    plain = Bench("off", rtt_seconds, 0.0)
    plain.run(FixedWindowSize(0), 0.0, 200)
    assert bench.pace >= plain.pace / 1.1
    bench.hit_probability = 0.8
    chosen = bench.run(size, 0.9, 400)
    assert min(chosen[-20:]) > 1


def test_hits_that_end_are_noticed() -> None:
    pipeline = Pipeline("ahead")
    proposal = draft_pb2.Proposal(token_ids=[1], ahead=draft_pb2.AHEAD_OUTCOME_HIT)
    for _ in range(100):
        pipeline.observe(proposal, 0.03, was_asked=True)
    assert pipeline.hiding().mode == "ahead"
    assert pipeline.hiding().hit_probability > 0.99
    # A drafter that is busy drafts nothing ahead, and does not call that a miss.
    for _ in range(100):
        pipeline.observe(draft_pb2.Proposal(token_ids=[1]), 0.03, was_asked=True)
    assert pipeline.hiding().hit_probability < 0.01
    assert Pipeline("off").hiding().mode == "off"


def test_the_way_to_the_target_is_not_forgotten_because_it_was_hidden() -> None:
    bench = Bench("candidates", 0.08, 1.0)
    bench.run(FixedWindowSize(0), 0.8, 50)
    plain = bench.experience.costs.plain_seconds()
    bench.run(FixedWindowSize(4), 0.8, 400)
    assert bench.experience.costs.plain_seconds() == pytest.approx(plain, rel=0.05)

"""The choice of K."""

import itertools
import random
from contextlib import ExitStack
from dataclasses import replace

import pytest

from orchestrator.drafted import EMPTY, PREFILL
from orchestrator.window_size import FixedWindowSize, MeasuredWindowSize, SharedExperience
from orchestrator.window_sizes import NO_TOKENS
from specdec.forward_costs import ForwardCosts
from specdec.v1 import draft_pb2, model_pb2
from tests.orchestrator.made_rounds import made_round

LIMIT = 16
STEEP = {1: 100, 2: 200, 17: 1700}
"""Milliseconds of a forward pass by rows, where every row costs as much as the first."""
FLAT = {1: 100, 2: 130, 5: 135, 17: 180}


class Bench:
    """Rounds of one request after another against services with known costs and acceptance."""

    def __init__(self, costs: dict[int, int], draft_seconds: float = 0.005, seed: int = 0) -> None:
        self.experience = SharedExperience()
        self.experience.announce(
            model_pb2.ModelInfo(
                forward_costs=[model_pb2.ForwardCost(rows=rows, microseconds=1000 * ms) for rows, ms in costs.items()]
            )
        )
        self._costs = ForwardCosts((rows, ms / 1000) for rows, ms in costs.items())
        self._draft_seconds = draft_seconds
        self._random = random.Random(seed)
        self.seconds = 0.0
        self.tokens = 0

    def request(self) -> MeasuredWindowSize:
        return MeasuredWindowSize(LIMIT, self.experience)

    def verify_seconds(self, rows: int) -> float:
        return self._costs.seconds(rows)

    def run(self, size: MeasuredWindowSize | FixedWindowSize, acceptance: float, num_rounds: int) -> list[int]:
        """Rounds where each draft token is accepted with this probability; returns the K of each."""
        chosen = []
        for _ in range(num_rounds):
            count = size.choose().model
            accepted = 0
            while accepted < count and self._random.random() < acceptance:
                accepted += 1
            verify, draft = self.verify_seconds(count + 1), count * self._draft_seconds
            size.observe(made_round(count, accepted, verify_seconds=verify, draft_seconds=draft))
            self.seconds += verify + draft
            self.tokens += accepted + 1
            chosen.append(count)
        return chosen


def test_a_good_drafter_gets_long_windows_and_a_bad_one_none() -> None:
    bench = Bench(FLAT)
    good, bad = bench.request(), bench.request()
    assert min(bench.run(good, 0.95, 60)[30:]) >= 8
    assert bench.run(bad, 0.0, 60)[10:].count(0) >= 46


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
def test_it_is_about_as_good_as_the_best_fixed_k(costs: dict[int, int], acceptance: float) -> None:
    paces = {}
    for count in range(LIMIT + 1):
        bench = Bench(costs)
        bench.run(FixedWindowSize(count), acceptance, 400)
        paces[count] = bench.tokens / bench.seconds
    bench = Bench(costs)
    for _ in range(4):
        bench.run(bench.request(), acceptance, 100)
    assert bench.tokens / bench.seconds >= 0.9 * max(paces.values())


@pytest.mark.parametrize("num_good", [0, 5, 30, 100])
def test_when_acceptance_collapses_drafting_ends_within_ten_rounds(num_good: int) -> None:
    bench = Bench(FLAT)
    bench.run(bench.request(), 0.8, 300)
    size = bench.request()
    bench.run(size, 0.8, num_good)
    chosen = bench.run(size, 0.0, 40)
    assert 0 in chosen[:10]
    assert chosen[10:].count(0) >= 22


def test_a_hopeless_request_costs_little() -> None:
    bench = Bench(FLAT)
    bench.run(bench.request(), 0.6, 300)
    bench.seconds = 0.0
    bench.tokens = 0
    bench.run(bench.request(), 0.0, 200)
    assert bench.seconds / bench.tokens <= 1.05 * bench.verify_seconds(1)


def test_it_comes_back_when_acceptance_recovers() -> None:
    bench = Bench(FLAT)
    size = bench.request()
    bench.run(size, 0.0, 60)
    chosen = bench.run(size, 0.9, 100)
    first = next(index for index, count in enumerate(chosen) if count > 1)
    assert first <= 70
    assert min(chosen[first + 10 :]) > 1


def test_k_does_not_swing() -> None:
    bench = Bench(FLAT)
    size = bench.request()
    bench.run(size, 0.7, 50)
    chosen = bench.run(size, 0.7, 200)
    changes = sum(before != after for before, after in itertools.pairwise(chosen))
    assert changes <= 40
    assert chosen.count(0) <= 10


def test_a_new_request_begins_with_what_others_have_learnt_but_never_without_hope() -> None:
    bench = Bench(FLAT)
    bench.run(bench.request(), 0.95, 200)
    assert bench.request().choose().model >= 8
    for _ in range(20):
        bench.run(bench.request(), 0.0, 100)
    assert bench.request().choose().model >= 1


def test_while_nothing_is_known_k_is_moderate() -> None:
    assert MeasuredWindowSize(LIMIT, SharedExperience()).choose().model == 4
    assert MeasuredWindowSize(2, SharedExperience()).choose().model == 2


def test_rounds_where_the_drafter_had_no_guess_say_nothing_against_it() -> None:
    """Prompt lookup without a match costs nothing, and says nothing about the next match."""
    bench = Bench(FLAT)
    size = bench.request()
    bench.run(size, 0.9, 40)
    for _ in range(200):
        assert size.choose().model > 1
        size.observe(made_round(0, 0, verify_seconds=0.1))


def test_without_the_acceptance_of_others_a_request_begins_as_the_first_one() -> None:
    bench = Bench(FLAT)
    bench.run(bench.request(), 0.95, 200)
    private = bench.experience.costs_only()
    assert private.costs is bench.experience.costs
    assert private.rates(3, by_lookup=False) == SharedExperience().rates(3, by_lookup=False)
    assert private.rates(3, by_lookup=False) != bench.experience.rates(3, by_lookup=False)
    assert MeasuredWindowSize(LIMIT, private).choose().model < bench.request().choose().model


@pytest.mark.parametrize("source", [draft_pb2.DRAFT_SOURCE_NGRAM, draft_pb2.DRAFT_SOURCE_MEMORY])
def test_windows_of_lookup_and_of_a_model_have_sizes_of_their_own(source: draft_pb2.DraftSource.ValueType) -> None:
    bench = Bench(FLAT)
    size = bench.request()
    for _ in range(40):
        sizes = size.choose()
        size.observe(made_round(sizes.model, min(1, sizes.model), draft_seconds=0.05 * sizes.model))
        size.observe(made_round(sizes.lookup, sizes.lookup, draft_seconds=0.001, source=source))
    sizes = size.choose()
    assert sizes.model in (1, 2)
    assert sizes.lookup >= 8


def test_where_nobody_looks_anything_up_nobody_is_asked_to() -> None:
    bench = Bench(FLAT)
    size = bench.request()
    bench.run(size, 0.0, 12)
    assert size.choose() == NO_TOKENS
    size.observe(made_round(4, 4, source=draft_pb2.DRAFT_SOURCE_SUFFIX))
    sizes = size.choose()
    assert sizes.model == 0
    assert sizes.lookup > 0


def test_without_a_model_only_lookup_is_asked() -> None:
    sizes = MeasuredWindowSize(LIMIT, SharedExperience(), has_model=False).choose()
    assert sizes.model == 0
    assert sizes.lookup > 0


def test_runners_up_are_verified_where_rows_cost_less_than_steps() -> None:
    bench = Bench({1: 100, 17: 104}, draft_seconds=0.02)
    size = MeasuredWindowSize(LIMIT, bench.experience, branches=True)
    for _ in range(30):
        sizes = size.choose()
        size.observe(made_round(sizes.model, 0, draft_seconds=0.02 * (sizes.steps or sizes.model), steps=sizes.steps))
        sizes = size.choose()
        others = sizes.model - sizes.steps
        if sizes.steps and others:
            size.observe(made_round(sizes.model, 1, draft_seconds=0.02 * sizes.steps, steps=sizes.steps, runner_up=0))
    sizes = size.choose()
    assert 0 < sizes.steps <= 2
    assert sizes.model > sizes.steps
    assert sizes.lookup >= sizes.model
    alone = MeasuredWindowSize(LIMIT, bench.experience).choose()
    assert alone.steps == 0, "a chain"


def test_runners_up_that_are_never_right_are_left_out() -> None:
    bench = Bench({1: 100, 17: 900}, draft_seconds=0.02)
    size = MeasuredWindowSize(LIMIT, bench.experience, branches=True)
    first = size.choose()
    for _ in range(300):
        sizes = size.choose()
        steps = sizes.steps or sizes.model
        size.observe(made_round(sizes.model, min(1, steps), draft_seconds=0.001 * steps, steps=sizes.steps))
    assert first.model > 0
    assert size.choose().steps == 0


def test_where_rows_cost_as_much_as_steps_a_window_is_a_chain() -> None:
    bench = Bench(STEEP, draft_seconds=0.001)
    size = MeasuredWindowSize(LIMIT, bench.experience, branches=True)
    for _ in range(50):
        sizes = size.choose()
        size.observe(made_round(sizes.model, sizes.model, draft_seconds=0.001 * sizes.model))
    assert size.choose().steps == 0


def test_drafts_that_were_too_dear_once_are_tried_again() -> None:
    bench = Bench(FLAT)
    size = bench.request()
    size.observe(made_round(4, 0, draft_seconds=40.0))
    chosen = []
    for _ in range(200):
        count = size.choose().model
        size.observe(
            made_round(count, count, draft_seconds=0.005 * count, verify_seconds=bench.verify_seconds(count + 1))
        )
        chosen.append(count)
    assert chosen[0] == 0
    assert max(chosen[:20]) == 1
    assert chosen[-1] >= 4


def asked_for_lookup(num_rounds: int, found_every: int, draft_network_seconds: float, num_others: int = 0) -> int:
    """How many rounds asked for lookup, where a draft model does not pay and lookup finds something now and then."""
    bench = Bench(STEEP, draft_seconds=0.5)
    with ExitStack() as running:
        for _ in range(num_others):
            running.enter_context(bench.experience.costs.running())
        return _num_asked(bench, num_rounds, found_every, draft_network_seconds)


def _num_asked(bench: Bench, num_rounds: int, found_every: int, draft_network_seconds: float) -> int:
    size = bench.request()
    bench.run(size, 0.0, 40)
    size.observe(made_round(4, 4, source=draft_pb2.DRAFT_SOURCE_SUFFIX))
    num_asked = 0
    for number in range(num_rounds):
        sizes = size.choose()
        if sizes.model:
            size.observe(made_round(sizes.model, 0, draft_seconds=0.5 * sizes.model))
            continue
        num_asked += sizes.lookup > 0
        count = sizes.lookup if number % found_every == 0 else 0
        size.observe(
            made_round(
                count,
                count,
                source=draft_pb2.DRAFT_SOURCE_SUFFIX,
                draft_network_seconds=draft_network_seconds if sizes.lookup else 0.0,
                is_asked=sizes.lookup > 0,
            )
        )
    return num_asked


def test_lookup_that_finds_nothing_is_seldom_asked_where_asking_takes_time() -> None:
    assert asked_for_lookup(200, 1000, 0.02) < 50
    assert asked_for_lookup(200, 1000, 0.0) > 180
    assert asked_for_lookup(200, 2, 0.02) > 150


def test_among_many_nobody_asks_for_lookup_alone() -> None:
    assert asked_for_lookup(200, 2, 0.0, num_others=3) > 150
    assert asked_for_lookup(200, 2, 0.0, num_others=8) == 0


def test_a_request_that_began_without_drafts_leaves_trials_to_others_and_joins_in_when_drafts_pay() -> None:
    bench = Bench(STEEP, draft_seconds=0.1)
    shared = bench.experience.shared
    assert shared is not None
    with ExitStack() as running:
        for _ in range(8):
            running.enter_context(bench.experience.costs.running())
        for _ in range(3):
            bench.run(bench.request(), 0.0, 100)
        requests = [bench.request() for _ in range(8)]
        begun = [request.begins_with_drafts() for request in requests]
        assert 1 <= begun.count(True) <= 2
        tried, other = requests[begun.index(True)], requests[begun.index(False)]
        assert max(bench.run(tried, 0.0, 400)) == 1
        assert max(bench.run(other, 0.0, 400)) == 0
    # Alone, it is as any other.
    assert max(bench.run(other, 0.95, 400)) > 0


@pytest.mark.parametrize("cause", [PREFILL, EMPTY, "lost"])
def test_rounds_that_wanted_drafts_and_had_none_count_against_drafts_for_all(cause: str) -> None:
    """A round without them takes as long among others with some; a replica that was lost says nothing of the next."""
    rates = []
    for count in (0, 50):
        bench = Bench(FLAT)
        shared = bench.experience.shared
        assert shared is not None
        size = bench.request()
        bench.run(size, 0.9, 100)
        plain = made_round(0, 0, verify_seconds=0.1)
        for _ in range(count):
            size.observe(replace(plain, drafted=replace(plain.drafted, fallback_cause=cause)))
        rates.append(shared.rates(1)[0])
    assert rates[0] > 0.8
    assert (rates[1] < 0.7) == (cause != "lost")


def test_a_request_that_began_without_drafts_asks_for_no_lookup_among_others() -> None:
    bench = Bench(STEEP, draft_seconds=0.1)
    with ExitStack() as running:
        for _ in range(3):
            running.enter_context(bench.experience.costs.running())
        for _ in range(3):
            bench.run(bench.request(), 0.0, 100)
        requests = [bench.request() for _ in range(8)]
        begun = [request.begins_with_drafts() for request in requests]
        tried, other = requests[begun.index(True)], requests[begun.index(False)]
        # Nothing is known of lookup yet, so whoever may ask for it does.
        bench.experience.sources.add(True)
        assert any(tried.choose().lookup for _ in range(20))
        assert not any(other.choose().lookup for _ in range(20))
    assert any(other.choose().lookup for _ in range(20))

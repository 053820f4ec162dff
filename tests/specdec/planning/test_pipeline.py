import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.pipeline import Pipeline, RoundParts
from tests.specdec.planning.numbers import pipelines, probabilities

times = st.floats(0, 0.2)
all_parts = st.builds(RoundParts, times, times, times, times)


def simulated_round(parts: RoundParts, hit_probability: float, rounds_ahead: int, num_rounds: int, seed: int) -> float:
    """Candidate windows, round by round: when is each verdict?

    A window has reached the target when its drafter is done with it: after the verdict that it knew at the latest, and
    after the window before it. The target then judges it as soon as it is free.
    """
    chance = random.Random(seed)
    away = parts.drafting + parts.draft_network + parts.network
    verdicts = [0.0]
    drafted, last_miss = 0.0, 0
    for index in range(1, num_rounds + 1):
        if chance.random() >= hit_probability:
            # Round `index - 1` came out as nobody had drafted for: everything begins again with its verdict.
            last_miss = index - 1
            drafted = verdicts[-1] + away
            arrived = drafted
        else:
            known = max(last_miss, index - 1 - rounds_ahead)
            drafted = max(drafted + parts.drafting, verdicts[known] + away)
            arrived = drafted
        verdicts.append(max(arrived, verdicts[-1]) + parts.verify)
    return verdicts[-1] / num_rounds


@pytest.mark.parametrize("rounds_ahead", [1, 2, 3])
@pytest.mark.parametrize("hit_probability", [0.3, 0.8, 1.0])
@pytest.mark.parametrize(
    "parts",
    [
        RoundParts(0.024, 0.03, 0.0005),
        RoundParts(0.018, 0.03, 0.02),
        RoundParts(0.03, 0.03, 0.08),
        RoundParts(0.06, 0.03, 0.02),
    ],
)
def test_candidates_are_what_a_simulation_of_the_messages_gives(
    parts: RoundParts, hit_probability: float, rounds_ahead: int
) -> None:
    formula = Pipeline("candidates", hit_probability, rounds_ahead).round_seconds(parts)
    assert simulated_round(parts, hit_probability, rounds_ahead, 40_000, 1) == pytest.approx(formula, rel=0.015)


def test_by_hand() -> None:
    parts = RoundParts(drafting=0.021, verify=0.03, network=0.02)
    assert Pipeline("off").round_seconds(parts) == pytest.approx(0.071)
    # 71 - 0.8 * min(21, 50)
    assert Pipeline("ahead", 0.8).round_seconds(parts) == pytest.approx(0.0542)
    # 0.2 * 71 + 0.8 * 30 + (max(30, 71 - 30) - 30) * 0.64 / 1.8
    assert Pipeline("candidates", 0.8).round_seconds(parts) == pytest.approx(0.0421111, abs=1e-6)
    # Two rounds ahead the network is hidden to the end: 71 - 2 * 30 < 30.
    assert Pipeline("candidates", 0.8, 2).round_seconds(parts) == pytest.approx(0.0382)


def test_ahead_hides_no_more_drafting_than_fits() -> None:
    parts = RoundParts(drafting=0.09, verify=0.03, network=0.02)
    assert Pipeline("ahead", 1.0).round_seconds(parts) == pytest.approx(0.09)


def test_the_drafters_own_network_is_hidden_with_the_drafting() -> None:
    parts = RoundParts(drafting=0.01, verify=0.03, network=0.0, draft_network=0.005)
    assert Pipeline("off").round_seconds(parts) == pytest.approx(0.045)
    assert Pipeline("ahead", 1.0).round_seconds(parts) == pytest.approx(0.03)


@given(all_parts, st.integers(1, 4))
def test_without_hits_nothing_is_hidden(parts: RoundParts, rounds_ahead: int) -> None:
    plain = Pipeline("off").round_seconds(parts)
    assert Pipeline("ahead", 0.0).round_seconds(parts) == pytest.approx(plain)
    assert Pipeline("candidates", 0.0, rounds_ahead).round_seconds(parts) == pytest.approx(plain)


@given(all_parts, probabilities, st.integers(1, 4))
def test_each_mode_hides_what_the_one_before_it_hides(parts: RoundParts, hits: float, rounds_ahead: int) -> None:
    off = Pipeline("off").round_seconds(parts)
    ahead = Pipeline("ahead", hits).round_seconds(parts)
    candidates = [Pipeline("candidates", hits, rounds_ahead + more).round_seconds(parts) for more in (0, 1)]
    in_order = [off, ahead, *candidates]
    # With one round ahead and few hits in a row the long gap of candidates is rare, so this holds for every h.
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(in_order))
    assert in_order[-1] >= max(parts.verify, parts.drafting) - 1e-12


@given(all_parts, pipelines, probabilities)
def test_more_hits_are_never_slower(parts: RoundParts, pipeline: Pipeline, more: float) -> None:
    better = Pipeline(pipeline.mode, max(more, pipeline.hit_probability), pipeline.rounds_ahead)
    assert better.round_seconds(parts) <= pipeline.round_seconds(parts) + 1e-12


@given(all_parts, pipelines, times)
def test_no_part_makes_a_round_shorter_by_being_longer(parts: RoundParts, pipeline: Pipeline, more: float) -> None:
    for index in range(4):
        longer = [parts.drafting, parts.verify, parts.network, parts.draft_network]
        longer[index] += more
        assert pipeline.round_seconds(RoundParts(*longer)) >= pipeline.round_seconds(parts) - 1e-12


def test_wasted_drafts() -> None:
    assert Pipeline("off", 0.7).drafting_rounds() == 1
    assert Pipeline("ahead", 0.7).drafting_rounds() == pytest.approx(1.3)


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="hit"):
        Pipeline("ahead", 1.5)
    with pytest.raises(ValueError, match="ahead"):
        Pipeline("candidates", 0.5, 0)

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.waterfall.parts import PARTS, durations

SECONDS = st.floats(0, 10)


def test_what_was_measured_is_the_round() -> None:
    measured = {"draft_compute": 0.004, "network": 0.001, "target_compute": 0.01, "waiting": 0.001}
    split = durations(0.016, measured)
    assert split.parts == measured
    assert split.hidden_seconds == 0


def test_what_is_missing_is_the_orchestrators() -> None:
    assert durations(0.02, {"target_compute": 0.015}).parts == {
        "target_compute": 0.015,
        "waiting": pytest.approx(0.005),
    }


def test_drafting_ahead_is_hidden_from_its_beginning() -> None:
    split = durations(0.02, {"draft_queue": 0.003, "draft_compute": 0.010, "target_compute": 0.015})
    assert split.parts == {"draft_compute": pytest.approx(0.005), "target_compute": 0.015}
    assert split.hidden_seconds == pytest.approx(0.008)


def test_a_candidate_hides_verification_too() -> None:
    split = durations(0.005, {"draft_compute": 0.01, "target_compute": 0.02})
    assert split.parts == {"target_compute": pytest.approx(0.005)}
    assert split.hidden_seconds == pytest.approx(0.025)


def test_a_round_without_measurements_is_not_split() -> None:
    assert durations(0.5, {}).parts == {"unknown": 0.5}


@given(SECONDS, st.dictionaries(st.sampled_from([part.name for part in PARTS if part.name != "unknown"]), SECONDS))
def test_the_parts_are_the_round(wall: float, measured: dict[str, float]) -> None:
    split = durations(wall, measured)
    assert all(seconds > 0 for seconds in split.parts.values())
    assert math.isclose(sum(split.parts.values()), wall, abs_tol=1e-9)
    assert split.hidden_seconds <= sum(measured.values()) + 1e-9


def test_letters_tell_the_parts_apart() -> None:
    assert len({part.letter for part in PARTS}) == len(PARTS)

"""Acceptance by position."""

import pytest

from orchestrator.acceptance import AcceptanceByPosition


def test_only_judged_tokens_count() -> None:
    acceptance = AcceptanceByPosition(decay=1.0)
    acceptance.observe(4, 2)
    acceptance.observe(4, 4)
    acceptance.observe(2, 0)
    acceptance.observe(0, 0)
    # Position 0 was judged three times, 1 and 2 twice, 3 once: what lies behind a rejection was never judged.
    assert acceptance.rates([0.5] * 4, 0.0001) == pytest.approx([2 / 3, 1.0, 1 / 2, 1.0], abs=1e-3)


def test_old_windows_fade() -> None:
    acceptance = AcceptanceByPosition(decay=0.5)
    for _ in range(20):
        acceptance.observe(1, 1)
    acceptance.observe(1, 0)
    # 1 accepted of 2 judged.
    assert acceptance.rates([1.0], 1e-9) == pytest.approx([0.5], abs=1e-3)
    acceptance.observe(1, 0)
    assert acceptance.rates([1.0], 1e-9) == pytest.approx([0.25], abs=1e-3)


def test_the_prior_counts_as_many_windows_as_it_says() -> None:
    acceptance = AcceptanceByPosition(decay=1.0)
    assert acceptance.rates([0.6, 0.5], 4.0) == [0.6, 0.5]
    acceptance.observe(1, 1)
    level = (4 * 0.6 + 1) / (4 * 0.6 + 0.6)
    assert acceptance.rates([0.6, 0.5], 4.0) == pytest.approx([(4 * 0.6 * level + 1) / 5, 0.5 * level])


def test_positions_behind_a_rejection_sink_with_the_first() -> None:
    acceptance = AcceptanceByPosition(decay=1.0)
    for _ in range(20):
        acceptance.observe(4, 0)
    assert max(acceptance.rates([0.8] * 4, 3.0)) < 0.1

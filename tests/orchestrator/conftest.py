"""Shared fixtures."""

import pytest

from orchestrator import rest, verifier


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again at once."""
    monkeypatch.setattr(rest, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(rest, "_LAST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(verifier, "_FIRST_PAUSE_SECONDS", 0.005)

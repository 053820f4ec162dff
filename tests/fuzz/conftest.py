"""Fixtures of the orchestrator's tests that are of use here."""

from tests.orchestrator.conftest import short_pauses

__all__ = ["short_pauses"]

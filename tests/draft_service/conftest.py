"""One trained draft of each kind for all tests that only look at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draft_service.training import report as report_module
from draft_service.training.run import train_draft
from draft_service.training.settings import TrainingSettings
from tests.draft_service.training.running import save_target, tiny_settings


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    target: Path
    out: Path
    settings: TrainingSettings

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.out / "report.json").read_text())
        return report


@pytest.fixture(scope="session", autouse=True)
def short_answers() -> Iterator[None]:
    """Every run ends with a report of answers to held-out prompts; those of a real one take longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "_MAX_NEW_TOKENS", 32)
        yield


def train(directory: Path, **changes: object) -> Trained:
    target = save_target(directory / "target")
    settings = tiny_settings(target, directory / "out", **changes)
    train_draft(settings)
    return Trained(target, directory / "out", settings)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A draft that reads the target's states."""
    # Most visits are of states, which take next to no time and teach less.
    return train(tmp_path_factory.mktemp("trained"), visits=120_000)


@pytest.fixture(scope="session")
def trained_on_tokens(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A draft that reads tokens alone."""
    return train(tmp_path_factory.mktemp("trained-on-tokens"), upper_layers=0)


@pytest.fixture(params=["features", "tokens"])
def either(request: pytest.FixtureRequest) -> Trained:
    """Each of them."""
    found: Trained = request.getfixturevalue("trained" if request.param == "features" else "trained_on_tokens")
    return found

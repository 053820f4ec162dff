"""The real services as processes, with the embedded model, shared by the tests of this folder."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.settings import DEFAULT_MODEL
from tests.end_to_end.draft_models import save_wrong_draft
from tests.otlp_receiver import OtlpReceiver

_METRICS = ("--metrics-port=0",)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """One event loop for all tests of this folder: the processes belong to it."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("asyncio") is not None:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@dataclass(frozen=True)
class Deployment:
    """One target, several drafters, and an orchestrator for each of them; telemetry goes to `receiver`."""

    group: ServiceGroup
    receiver: OtlpReceiver
    ngram: str
    """Address of the orchestrator whose drafter is prompt lookup."""
    same: str
    """Its drafter is the target's own model."""
    wrong: str
    """Its drafter is a small model with random weights."""
    suffix: str
    """Its drafter is lookup by the longest match, in past outputs too."""
    combined: str
    """Its drafter is the default one: that lookup, and the draft model that comes with the package."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    """Started once, since the model takes seconds to load, and ended before the tests of the next folder: processes
    that export five times a second take time even when nobody asks them for anything."""
    wrong_model = save_wrong_draft(tmp_path_factory.mktemp("models") / "wrong")
    async with OtlpReceiver() as receiver:
        base = ThreeServices(
            num_threads=1,
            drain_seconds=5,
            target_arguments=_METRICS,
            draft_arguments=_METRICS,
            orchestrator_arguments=_METRICS,
            environment=receiver.environment,
        )
        target, ngram_draft, ngram = dataclasses.replace(base, drafter="ngram").specs()
        same_draft, same = dataclasses.replace(base, draft_model=DEFAULT_MODEL).in_front_of(target.address, "-same")
        with_wrong = dataclasses.replace(base, draft_model=str(wrong_model))
        wrong_draft, wrong = with_wrong.in_front_of(target.address, "-wrong")
        suffix_draft, suffix = dataclasses.replace(base, drafter="suffix").in_front_of(target.address, "-suffix")
        combined_draft, combined = dataclasses.replace(base, drafter="combined").in_front_of(
            target.address, "-combined"
        )
        drafts = (ngram_draft, same_draft, wrong_draft, suffix_draft, combined_draft)
        specs = (target, *drafts, same, wrong, suffix, combined, ngram)
        async with ServiceGroup(specs, drain_seconds=5) as group:
            yield Deployment(
                group,
                receiver,
                ngram=ngram.address,
                same=same.address,
                wrong=wrong.address,
                suffix=suffix.address,
                combined=combined.address,
            )

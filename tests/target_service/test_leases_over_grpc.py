"""B33: a client that reads so slowly that the leases of its sequences run out has the same text in the end."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, cast

import pytest

from draft_service.drafters.making import causal_lm_drafter
from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from specdec.telemetry import names
from specdec.v1 import sampling_pb2
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.whole_system import hosted, loaded_llama, orchestrator
from tests.orchestrator.running import request
from tests.orchestrator.serving import until

NUM_TOKENS = 24
SLOW_READS = (2, 3, 5)
SETTINGS: dict[str, Any] = {"max_num_draft_tokens": 8, "max_num_sequences": 8, "lease_seconds": 0.2}


class SlowCall:
    """What the service asks of the context of its call; the reading is the test's."""

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_slow_reader_has_the_same_text(temperature: float) -> None:
    target = TargetService(TargetSettings(**SETTINGS), lambda: loaded_llama(0))
    draft = DraftService(
        DraftSettings(**SETTINGS), lambda: causal_lm_drafter(loaded_llama(1), DraftSettings(**SETTINGS))
    )
    asked = request([5, 9, 200], NUM_TOKENS, 2, sampling=sampling_pb2.SamplingParams(seed=3, temperature=temperature))
    async with (
        hosted(target) as target_host,
        hosted(draft) as draft_host,
        orchestrator(target_host.address, draft_host.address) as run,
    ):
        expected = (await run.generate(asked)).token_ids
        tokens: list[int] = []
        responses = run.service.Generate(asked, cast("Any", SlowCall()))
        num_read = 0
        async with aclosing(cast("Any", responses)) as reading:
            async for response in reading:
                tokens += response.delta.token_ids
                num_read += 1
                if num_read in SLOW_READS:
                    await until(lambda: target._host.num_sequences == draft._host.num_sequences == 0)
        assert tokens == expected
        assert len(tokens) == NUM_TOKENS or tokens[-1] == 1
        assert run.counting.by_attribute(names.RESYNCS)["target"] == len(SLOW_READS)

"""Wrong variants of windows and verdicts of many sequences in one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from specdec.v1 import target_pb2
from target_service import engine
from target_service.answer import Answer, batched
from target_service.asked import AskedWindow, read_batch
from tests.exactness import coupled_id_checks as coupled_ids
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage


@sabotage(services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def verdicts_of_others(patch: pytest.MonkeyPatch) -> None:
    """Of verdicts in columns each has the target's own token of the one before."""

    def shifted(answers: Iterable[Answer]) -> Iterator[target_pb2.TargetEvent]:
        for event in batched(answers):
            tokens = event.verdicts.next_token_ids
            tokens[:] = [*tokens[-1:], *tokens[:-1]]
            yield event

    patch.setattr(engine, "batched", shifted)


@sabotage(services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def drafts_of_others(patch: pytest.MonkeyPatch) -> None:
    """Of windows in columns each is judged with the draft tokens of the one before."""

    def shifted(message: target_pb2.WindowBatch) -> list[tuple[bytes, AskedWindow]]:
        windows = read_batch(message)
        drafts = [asked.token_ids for _, asked in windows]
        return [
            (sequence_id, asked._replace(token_ids=other))
            for (sequence_id, asked), other in zip(windows, [*drafts[-1:], *drafts[:-1]], strict=True)
        ]

    patch.setattr(engine, "read_batch", shifted)

"""The plain loop with candidate windows: as `decode_loop`, but some rounds are under way before they begin here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from opentelemetry.trace import Span

from orchestrator.candidate_verifier import CandidateVerifier
from orchestrator.committed import CommittedTokens
from orchestrator.drafted import NOTHING_DRAFTED
from orchestrator.drafter import Drafter
from orchestrator.output import OutputAssembler, OutputPiece
from orchestrator.rounds import Round
from orchestrator.window_size import WindowSize
from specdec.telemetry import names, tracing


async def decode_with_candidates(
    committed: CommittedTokens,
    drafter: Drafter,
    verifier: CandidateVerifier,
    output: OutputAssembler,
    window_size: WindowSize,
    parent: Span,
) -> AsyncGenerator[tuple[Round, OutputPiece], None]:
    """Run the rounds of one request until its output ends.

    The drafter hands what it drafts ahead to the verifier by itself. Where the target has gone on with such a window,
    the drafter is told to propose the same one, which it has, so that it follows; nothing is sent to the target.

    Args, yields, raises: as `orchestrator.decode_loop.decode`.
    """
    try:
        began = time.perf_counter()
        if begins_with_drafts := window_size.begins_with_drafts():
            drafter.prefill()
        judged = await verifier.prefill(parent, drafter.take_features if begins_with_drafts else None)
        done = Round(0, NOTHING_DRAFTED, judged, time.perf_counter() - began)
        while True:
            committed.extend(judged.token_ids)
            piece = output.add(judged.token_ids, judged.verdict.logprobs)
            if piece.finish is not None:
                break
            with tracing.span(names.ROUND, parent=parent) as span:
                index, began = done.index + 1, time.perf_counter()
                drafter.ask(judged, index, window_size.choose, span, under_way=verifier.under_way)
                yield done, piece
                drafted = await drafter.drafted()
                judged = await verifier.verify(index, drafted.window, span)
                done = Round(index, drafted, judged, time.perf_counter() - began)
                window_size.observe(done)
                if span.is_recording():
                    span.set_attributes(done.attributes())
    finally:
        # Before the last words are read: a caller may take its time, or be gone.
        drafter.close()
        verifier.close()
    yield done, piece

"""The plain loop: draft, verify, commit."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from opentelemetry.trace import Span

from orchestrator.committed import CommittedTokens
from orchestrator.drafted import NOTHING_DRAFTED
from orchestrator.drafter import Drafter
from orchestrator.output import OutputAssembler, OutputPiece
from orchestrator.rounds import Round
from orchestrator.verifier import Verifier
from orchestrator.window_size import WindowSize
from specdec.telemetry import names, tracing


async def decode(
    committed: CommittedTokens,
    drafter: Drafter,
    verifier: Verifier,
    output: OutputAssembler,
    window_size: WindowSize,
    parent: Span,
) -> AsyncGenerator[tuple[Round, OutputPiece], None]:
    """Run the rounds of one request until its output ends.

    Args:
        committed: the prompt; grows by what each round commits.
        drafter: asked for a proposal in each round.
        verifier: judges it.
        output: cuts what is committed where the request ends.
        window_size: chooses the draft tokens of each round (K).
        parent: the request's span.

    Yields:
        Each round once it is committed, the prefill first, and what it adds to the output. The next proposal is in the
        making while the caller has the turn. However this ends, both services are told to forget the sequence.

    Raises:
        Refusal: the target does not take the request, or cannot be reached any more.
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
                drafter.ask(judged, index, window_size.choose, span)
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

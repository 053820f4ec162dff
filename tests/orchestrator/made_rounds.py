"""Rounds made up for tests: what the services would have said of them."""

from dataclasses import replace

from orchestrator.drafted import Drafted
from orchestrator.rounds import Round
from orchestrator.verifier import Judged
from orchestrator.window import Window
from specdec.v1 import draft_pb2, model_pb2, target_pb2


def made_round(
    num_draft_tokens: int,
    num_accepted: int,
    *,
    verify_seconds: float = 0.1,
    draft_seconds: float = 0.0,
    network_seconds: float = 0.0,
    draft_network_seconds: float = 0.0,
    queue_seconds: float = 0.0,
    batch_sequences: int = 1,
    batch_rows: int | None = None,
    source: draft_pb2.DraftSource.ValueType = draft_pb2.DRAFT_SOURCE_MODEL,
    steps: int = 0,
    runner_up: int | None = None,
    catches_up: bool = False,
    step_seconds: float = 0.0,
    draft_sequences: int = 1,
    is_asked: bool = False,
    ahead: draft_pb2.AheadOutcome.ValueType = draft_pb2.AHEAD_OUTCOME_UNSPECIFIED,
) -> Round:
    """One round.

    Args:
        num_draft_tokens: in the window.
        num_accepted: of them.
        verify_seconds: of the forward pass.
        draft_seconds: of all draft steps.
        network_seconds: on the way to the target and back.
        draft_network_seconds: on the way to the draft service and back, if it was asked.
        queue_seconds: before the forward pass.
        batch_sequences: in the pass.
        batch_rows: in the pass; None: those of so many windows like this one.
        source: of the window.
        steps: nodes that are a chain, if the window is a tree: all others follow the committed prefix. 0: all.
        catches_up: the drafter had much to run first.
        step_seconds: of a step, as the drafter says; 0: it does not.
        draft_sequences: that were drafted for in its first step.
        is_asked: the draft service had its say even if there is no draft token.
        ahead: what came of drafting ahead for it.
        runner_up: which of the others was accepted, alone.
    """
    parents = [*range(-1, steps - 1), *[-1] * (num_draft_tokens - steps)] if steps else []
    window = Window([5] * num_draft_tokens, parents)
    verdict = target_pb2.Verdict(
        base_length=10,
        accepted_nodes=range(num_accepted) if runner_up is None else [steps + runner_up],
        timings=model_pb2.Timings(
            queue_microseconds=round(queue_seconds * 1e6),
            compute_microseconds=round(verify_seconds * 1e6),
            batch_sequences=batch_sequences,
            batch_rows=batch_sequences * (num_draft_tokens + 1) if batch_rows is None else batch_rows,
        ),
    )
    timings = None
    if num_draft_tokens or is_asked:
        timings = model_pb2.Timings(
            compute_microseconds=round(draft_seconds * 1e6),
            step_microseconds=round(step_seconds * 1e6),
            batch_sequences=draft_sequences,
        )
    drafted = Drafted(window, wait_seconds=draft_seconds + draft_network_seconds, timings=timings, source=source)
    drafted = replace(drafted, catches_up=catches_up, ahead=ahead)
    wait_seconds = queue_seconds + verify_seconds + network_seconds
    judged = Judged(window, verdict, [5] * (num_accepted + 1), wait_seconds=wait_seconds)
    return Round(2, drafted, judged, drafted.wait_seconds + judged.wait_seconds)

"""The largest commands that the limits allow fit into a message of the size that is computed from them."""

from __future__ import annotations

from typing import Any

import pytest

from specdec.engine.limits import LARGEST_CONTEXT_LENGTH, max_command_bytes, max_message_bytes
from specdec.sampling.params import (
    MAX_DRAFT_LAW_SIZE,
    MAX_LISTED_TOKEN_IDS,
    MAX_LOGIT_BIAS_ENTRIES,
    SamplingParams,
)
from specdec.v1 import draft_pb2, model_pb2, target_pb2

LARGEST_ID = 2**32 - 1
TRACE = model_pb2.TraceContext(traceparent="0" * 55, tracestate="x" * 512)


def largest_sampling() -> SamplingParams:
    listed = tuple([LARGEST_ID] * MAX_LISTED_TOKEN_IDS)
    return SamplingParams(
        top_k=2**31 - 1,
        seed=2**64 - 1,
        min_new_tokens=2**31 - 1,
        logit_bias={LARGEST_ID - index: 1.5 for index in range(MAX_LOGIT_BIAS_ENTRIES)},
        allowed_token_ids=listed,
        banned_token_ids=listed,
        stop_token_ids=listed,
        num_logprobs=20,
    )


@pytest.mark.parametrize(("context_length", "num_draft_tokens"), [(1, 1), (8192, 32), (131_072, 256)])
def test_the_largest_commands_fit(context_length: int, num_draft_tokens: int) -> None:
    bound = max_command_bytes(context_length, num_draft_tokens)
    opens: dict[str, Any] = {
        "epoch": LARGEST_ID,
        "token_ids": [LARGEST_ID] * context_length,
        "prompt_length": LARGEST_ID,
        "sampling": largest_sampling().to_proto(),
        "round": LARGEST_ID,
        "trace_context": TRACE,
    }
    law = model_pb2.DraftDistribution(
        token_ids=[LARGEST_ID] * MAX_DRAFT_LAW_SIZE, weights=[LARGEST_ID] * MAX_DRAFT_LAW_SIZE, lost_mass=0.5
    )
    window = target_pb2.Window(
        epoch=LARGEST_ID,
        round=LARGEST_ID,
        base_length=LARGEST_ID,
        checksum=LARGEST_ID,
        token_ids=[LARGEST_ID] * num_draft_tokens,
        parents=[num_draft_tokens] * num_draft_tokens,
        distributions=[law] * num_draft_tokens,
        trace_context=TRACE,
    )
    commands = [
        target_pb2.TargetCommand(sequence_id=bytes(16), open=target_pb2.TargetOpen(max_length=LARGEST_ID, **opens)),
        draft_pb2.DraftCommand(sequence_id=bytes(16), open=draft_pb2.DraftOpen(num_draft_tokens=LARGEST_ID, **opens)),
        target_pb2.TargetCommand(sequence_id=bytes(16), window=window),
    ]
    sizes = [command.ByteSize() for command in commands]
    assert max(sizes) <= bound
    assert bound < max(sizes) + 20_000, "no tighter than needed, but no looser either"


def test_a_message_holds_at_least_what_senders_put_into_one() -> None:
    assert max_message_bytes(1, 1) == 4 << 20
    assert max_message_bytes(1, 256) == 4 << 20
    assert max_message_bytes(LARGEST_CONTEXT_LENGTH, 32) == max_command_bytes(LARGEST_CONTEXT_LENGTH, 32) > 4 << 20


def test_before_a_model_is_loaded_any_context_is_allowed_for() -> None:
    assert max_message_bytes(0, 32) == max_message_bytes(LARGEST_CONTEXT_LENGTH, 32)

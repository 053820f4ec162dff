from __future__ import annotations

import pytest

from orchestrator.token_use import TokenUse
from specdec.v1 import generation_pb2

IDS = generation_pb2.TokenIds(ids=[1, 2, 3])


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (generation_pb2.GenerateRequest(token_ids=IDS, max_new_tokens=10), 13),
        (generation_pb2.GenerateRequest(token_ids=IDS), 515),
        (generation_pb2.GenerateRequest(token_ids=IDS, max_new_tokens=10, num_completions=4), 43),
        (generation_pb2.GenerateRequest(text="ninebytes", max_new_tokens=10), 13),
        (
            generation_pb2.GenerateRequest(
                chat=generation_pb2.ChatInput(messages=[generation_pb2.ChatMessage(content="ä" * 4)] * 2),
                max_new_tokens=1,
            ),
            5,
        ),
        (generation_pb2.GenerateRequest(), 512),
        (None, 0),
    ],
)
def test_what_a_request_may_take(request_: generation_pb2.GenerateRequest | None, expected: int) -> None:
    assert TokenUse(request_, 512).expected_tokens == expected
    if request_ is not None:
        assert TokenUse(generation_pb2.GenerateUnaryRequest(request=request_), 512).expected_tokens == expected


def test_a_stream_is_counted_as_it_comes() -> None:
    use = TokenUse(generation_pb2.GenerateRequest(token_ids=IDS, max_new_tokens=10), 512)
    assert use.used_tokens == 0
    use.notice(generation_pb2.GenerateResponse(started=generation_pb2.Started(num_prompt_tokens=3)))
    use.notice(generation_pb2.GenerateResponse(delta=generation_pb2.Delta(token_ids=[1, 2])))
    use.notice(generation_pb2.GenerateResponse(delta=generation_pb2.Delta(token_ids=[3], completion=1)))
    use.abandon()
    use.notice(generation_pb2.GenerateResponse(finished=generation_pb2.Finished()))
    assert use.used_tokens == 6


def test_a_unary_call_is_counted_at_its_end_and_taken_for_whole_if_it_has_none() -> None:
    request = generation_pb2.GenerateUnaryRequest(
        request=generation_pb2.GenerateRequest(token_ids=IDS, max_new_tokens=10)
    )
    answered, abandoned = TokenUse(request, 512), TokenUse(request, 512)
    answered.notice(
        generation_pb2.GenerateUnaryResponse(
            started=generation_pb2.Started(num_prompt_tokens=3),
            completions=[generation_pb2.Completion(token_ids=[1, 2])] * 2,
        )
    )
    answered.abandon()
    assert answered.used_tokens == 7
    abandoned.abandon()
    assert abandoned.used_tokens == 13

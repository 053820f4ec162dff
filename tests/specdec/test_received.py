"""What a client has received, and what it asks for next."""

from __future__ import annotations

import pytest

from specdec.received import ChangedModelError, Received
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2


def started(**fields: object) -> generation_pb2.GenerateResponse:
    values: dict[str, object] = {
        "model_id": "m",
        "num_prompt_tokens": 3,
        "seed": 77,
        "acceptance_rule": model_pb2.ACCEPTANCE_RULE_COUPLED,
        **fields,
    }
    return generation_pb2.GenerateResponse(started=generation_pb2.Started(**values))  # type: ignore[arg-type]


def delta(*token_ids: int, completion: int = 0, index: int = 0) -> generation_pb2.GenerateResponse:
    report = generation_pb2.RoundReport(round=index)
    return generation_pb2.GenerateResponse(
        delta=generation_pb2.Delta(token_ids=token_ids, completion=completion, round=report)
    )


def finished(completion: int = 0) -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(finished=generation_pb2.Finished(completion=completion))


def test_before_anything_came_the_request_is_repeated_as_it_was() -> None:
    asked = generation_pb2.GenerateRequest(text="hi")
    assert Received(asked).next_request() == asked


def test_the_next_request_has_the_ids_and_the_seed_and_is_else_the_same() -> None:
    asked = generation_pb2.GenerateRequest(text="hi", num_completions=3, max_new_tokens=9, tenant="t")
    received = Received(asked)
    for response in (started(), delta(5, 6), delta(7, completion=2), delta(8, index=1)):
        assert received.add(response)
    again = received.next_request()
    assert [list(entry.ids) for entry in again.resume_token_ids] == [[5, 6, 8], [], [7]]
    assert again.sampling.seed == 77
    assert again.acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED
    assert (again.text, again.num_completions, again.max_new_tokens, again.tenant) == ("hi", 3, 9, "t")
    assert asked == generation_pb2.GenerateRequest(text="hi", num_completions=3, max_new_tokens=9, tenant="t")


def test_a_request_that_was_itself_a_resume_keeps_its_ids() -> None:
    ids = [generation_pb2.ReceivedTokens(ids=[1, 2])]
    received = Received(generation_pb2.GenerateRequest(text="hi", resume_token_ids=ids))
    received.add(started())
    received.add(delta(3))
    assert [list(entry.ids) for entry in received.next_request().resume_token_ids] == [[1, 2, 3]]


def test_started_comes_once_and_rounds_count_on() -> None:
    received = Received(generation_pb2.GenerateRequest(text="hi"))
    received.next_request()
    assert received.add(started())
    for index in range(3):
        assert received.add(delta(index, index=index))
    received.next_request()
    assert not received.add(started(request_id="another"))
    response = delta(9, index=0)
    assert received.add(response)
    assert response.delta.round.round == 3


def test_each_completion_is_finished_once() -> None:
    received = Received(generation_pb2.GenerateRequest(text="hi", num_completions=2))
    received.add(started())
    assert received.add(finished(0))
    assert not received.is_complete
    assert not received.add(finished(0))
    assert received.add(finished(1))
    assert received.is_complete


@pytest.mark.parametrize("fields", [{"model_id": "other"}, {"num_prompt_tokens": 4}])
def test_another_model_is_not_gone_on_with(fields: dict[str, object]) -> None:
    received = Received(generation_pb2.GenerateRequest(text="hi"))
    received.add(started())
    with pytest.raises(ChangedModelError, match="began with m and 3 prompt tokens"):
        received.add(started(**fields))


@pytest.mark.parametrize(
    ("rule", "temperature", "can_go_on"),
    [
        (model_pb2.ACCEPTANCE_RULE_COUPLED, None, True),
        (model_pb2.ACCEPTANCE_RULE_REJECTION, None, False),
        (model_pb2.ACCEPTANCE_RULE_BLOCK, 0.5, False),
        (model_pb2.ACCEPTANCE_RULE_REJECTION, 0.0, True),
    ],
)
def test_what_can_be_gone_on_with(
    rule: model_pb2.AcceptanceRule.ValueType, temperature: float | None, can_go_on: bool
) -> None:
    sampling = sampling_pb2.SamplingParams(temperature=temperature)
    received = Received(generation_pb2.GenerateRequest(text="hi", sampling=sampling))
    received.add(started(acceptance_rule=rule))
    assert received.can_go_on
    received.add(delta(5))
    assert received.can_go_on is can_go_on

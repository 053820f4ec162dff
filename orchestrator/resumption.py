"""Requests that go on where another orchestrator was lost: what a client may say that it has already."""

from __future__ import annotations

from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.v1 import generation_pb2, model_pb2


def check_resumed(
    request: generation_pb2.GenerateRequest,
    rule: model_pb2.AcceptanceRule.ValueType,
    max_new_tokens: int,
    num_completions: int,
    model_info: model_pb2.ModelInfo,
) -> tuple[tuple[int, ...], ...]:
    """The tokens that the client has of each completion, up to the last one of which it has any.

    Only where the text is a function of target and seed: by the other rules it depends on the windows too, which
    nobody remembers, so that the continuation would be another one than was lost.

    Args:
        request: as the client sent it.
        rule: of the request, resolved.
        max_new_tokens: of the request, resolved.
        num_completions: of the request, resolved.
        model_info: of the target.

    Raises:
        InvalidArgumentError: they cannot be the beginning of this request's output, or nobody could go on with them.
    """
    received = request.resume_token_ids
    if len(received) > num_completions:
        raise InvalidArgumentError(
            f"resume_token_ids has {len(received)} entries; there are {num_completions} completions"
        )
    resumed_ids = [tuple(entry.ids) for entry in received]
    while resumed_ids and not resumed_ids[-1]:
        resumed_ids.pop()
    if not resumed_ids:
        return ()
    is_greedy = request.sampling.HasField("temperature") and request.sampling.temperature == 0
    if rule != model_pb2.ACCEPTANCE_RULE_COUPLED and not is_greedy:
        raise InvalidArgumentError(
            "resume_token_ids needs the coupled rule or temperature 0: else the text depends on the drafts too"
        )
    if not request.sampling.HasField("seed") and not is_greedy:
        raise InvalidArgumentError("resume_token_ids needs the seed of the first request; Started names it")
    for index, ids in enumerate(resumed_ids):
        if len(ids) > max_new_tokens:
            raise InvalidArgumentError(
                f"resume_token_ids[{index}] has {len(ids)} ids; max_new_tokens is {max_new_tokens}"
            )
        if ids and max(ids) >= model_info.vocab_size:
            raise InvalidArgumentError(
                f"resume_token_ids[{index}] has an id outside the vocabulary of {model_info.vocab_size}"
            )
    return tuple(resumed_ids)


def check_room(resumed_ids: tuple[tuple[int, ...], ...], room: int) -> None:
    """Refuse more tokens than the context holds behind the prompt.

    Args:
        resumed_ids: from `check_resumed`.
        room: most new tokens of a completion.

    Raises:
        OutOfRangeError: there are more.
    """
    for index, ids in enumerate(resumed_ids):
        if len(ids) > room:
            raise OutOfRangeError(
                f"resume_token_ids[{index}] has {len(ids)} ids; behind the prompt the model's context holds {room}"
            )

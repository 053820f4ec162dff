"""A request goes on where another orchestrator was lost: ids, text and sums are those of the undisturbed run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from orchestrator import generation as generation_module
from specdec.client import GenerationResult
from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2
from tests.orchestrator.fakes import TOKENIZER_FILES, FakeDraft, FakeTarget
from tests.orchestrator.resolving import CONTEXT, REJECTION, model_info, resolve, text
from tests.orchestrator.running import PROMPT, Running, request, running
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE

TOKENIZER = TOKENIZER_FILES.tokenizer()
STOP = generation_pb2.FINISH_REASON_STOP


def received(*lists: Sequence[int]) -> list[generation_pb2.ReceivedTokens]:
    return [generation_pb2.ReceivedTokens(ids=ids) for ids in lists]


def resumed(asked: generation_pb2.GenerateRequest, *lists: Sequence[int]) -> generation_pb2.GenerateRequest:
    """The same request from somebody who has these ids."""
    again = generation_pb2.GenerateRequest()
    again.CopyFrom(asked)
    again.resume_token_ids.extend(received(*lists))
    return again


def scripted(content: str, *, ends: bool = False) -> FakeTarget:
    """A target that writes this text behind `PROMPT`, a byte or so a token, and begins again, or ends."""
    script = TOKENIZER.encode(content).ids + [EOS_TOKEN_ID] * ends
    return FakeTarget(lambda prefix: script[(len(prefix) - len(PROMPT)) % len(script)])


def text_at(result: GenerationResult, lengths: Sequence[int], num_tokens: int) -> str:
    """What a client has shown that has so many tokens."""
    return result.text[: sum(lengths[:num_tokens])]


async def with_lengths(run: Running, asked: generation_pb2.GenerateRequest) -> tuple[GenerationResult, list[int]]:
    result = GenerationResult()
    lengths: list[int] = []
    async for response in run.stub.Generate(asked, timeout=30):
        result.add(response)
        lengths += response.delta.text_lengths
    assert result.finished is not None
    return result, lengths


async def assert_goes_on_from_everywhere(target: FakeTarget, asked: generation_pb2.GenerateRequest) -> GenerationResult:
    """Cuts the request behind each of its tokens, and compares; gives the undisturbed result."""
    async with running(target, FakeDraft()) as run:
        whole, lengths = await with_lengths(run, asked)
        assert sum(lengths) == len(whole.text)
        for cut in range(len(whole.token_ids) + 1):
            rest, _ = await with_lengths(run, resumed(asked, whole.token_ids[:cut]))
            assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids, cut
            assert text_at(whole, lengths, cut) + rest.text == whole.text, cut
            assert rest.started is not None
            assert rest.started.num_prompt_tokens == len(PROMPT)
            assert rest.finished is not None
            assert whole.finished is not None
            for field in ("finish_reason", "stop_string", "stop_token_id", "usage"):
                assert getattr(rest.finished, field) == getattr(whole.finished, field), (cut, field)
            assert rest.finished.HasField("stop_token_id") == whole.finished.HasField("stop_token_id")
    assert not target.refusals
    return whole


@pytest.mark.parametrize("k", [0, 4])
async def test_any_cut_gives_the_same_ids_and_text(k: int) -> None:
    whole = await assert_goes_on_from_everywhere(FakeTarget(), request(num_draft_tokens=k))
    assert len(whole.token_ids) == 24


async def test_a_cut_within_a_character() -> None:
    whole = await assert_goes_on_from_everywhere(scripted("né 한국 🔥🔥\n"), request(max_new_tokens=30))
    assert "한국 🔥🔥" in whole.text


async def test_a_cut_within_what_may_be_a_stop_string() -> None:
    asked = request(max_new_tokens=60, stop_strings=["🔥🔥 end", "never"])
    whole = await assert_goes_on_from_everywhere(scripted("no 🔥 🔥🔥 en, neve 🔥🔥 end of it"), asked)
    assert whole.text == "no 🔥 🔥🔥 en, neve "
    assert whole.finished is not None
    assert whole.finished.stop_string == "🔥🔥 end"


async def test_a_cut_before_the_limit_releases_what_was_held_back() -> None:
    asked = request(max_new_tokens=6, stop_strings=["abcdefgh"])
    whole = await assert_goes_on_from_everywhere(scripted("abcdefg"), asked)
    assert whole.finished is not None
    assert whole.finished.finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_stop_token() -> None:
    whole = await assert_goes_on_from_everywhere(scripted("hi é", ends=True), request(max_new_tokens=40))
    assert whole.finished is not None
    assert whole.finished.stop_token_id == EOS_TOKEN_ID


async def test_both_services_are_told_what_is_the_prompt() -> None:
    """Penalties, least new tokens and n-grams count from there."""
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        whole = await run.generate()
        target.commands.clear()
        draft.commands.clear()
        await run.generate(resumed(request(), whole.token_ids[:5]))
    opens = [next(command.open for command in fake.commands if command.HasField("open")) for fake in (target, draft)]
    for opening in opens:
        assert list(opening.token_ids) == [*PROMPT, *whole.token_ids[:5]]
        assert opening.prompt_length == len(PROMPT)
    assert opens[0].max_length == len(PROMPT) + 24


async def test_what_has_ended_is_finished_without_a_round() -> None:
    target = scripted("hi", ends=True)
    async with running(target) as run:
        whole = await run.generate()
        target.commands.clear()
        responses = [response async for response in run.stub.Generate(resumed(request(), whole.token_ids))]
        assert [response.WhichOneof("event") for response in responses] == ["started", "finished"]
        finished = responses[-1].finished
        assert (finished.finish_reason, finished.stop_token_id) == (STOP, EOS_TOKEN_ID)
        assert finished.usage.num_prompt_tokens == len(PROMPT)
        assert finished.usage.num_generated_tokens == len(whole.token_ids)
        assert not target.commands


@pytest.mark.parametrize("is_much", [False, True])
async def test_ids_behind_the_end_are_refused_before_anything_is_said(
    is_much: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_much:
        monkeypatch.setattr(generation_module, "_MANY_RESUMED_TOKENS", 1)
    async with running(scripted("hi", ends=True)) as run:
        whole = await run.generate()
        call = run.stub.Generate(resumed(request(), [*whole.token_ids, 5]))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details() == "the output ends with 3 of the 4 ids in resume_token_ids"


async def test_completions_go_on_each_from_its_own_place() -> None:
    asked = request(num_completions=3)
    async with running(FakeTarget(), FakeDraft()) as run:
        whole = await _all(run, asked)
        cuts = [len(whole[0].token_ids), 0, 7]
        rest = await _all(run, resumed(asked, *(each.token_ids[:cut] for each, cut in zip(whole, cuts, strict=True))))
        fewer = await _all(run, resumed(asked, whole[0].token_ids[:3]))
    for each, cut, more in zip(whole, cuts, rest, strict=True):
        assert each.token_ids[:cut] + more.token_ids == each.token_ids
        assert more.finished is not None
        assert more.finished.usage.num_generated_tokens == 24
    assert [len(result.token_ids) for result in fewer] == [21, 24, 24]


async def _all(run: Running, asked: generation_pb2.GenerateRequest) -> list[GenerationResult]:
    results = [GenerationResult(completion=index) for index in range(asked.num_completions)]
    async for response in run.stub.Generate(asked, timeout=30):
        for result in results:
            result.add(response)
    return results


async def test_unary_requests_go_on_too() -> None:
    async with running(FakeTarget()) as run:
        whole = await run.generate()
        asked = generation_pb2.GenerateUnaryRequest(request=resumed(request(), whole.token_ids[:20]))
        answer = await run.stub.GenerateUnary(asked)
    assert list(answer.completions[0].token_ids) == whole.token_ids[20:]


def resuming(*lists: Sequence[int], **fields: Any) -> generation_pb2.GenerateRequest:
    values: dict[str, Any] = {"sampling": sampling_pb2.SamplingParams(seed=3), **fields}
    return text("hi", resume_token_ids=received(*lists), **values)


def test_what_the_client_has_is_kept_up_to_the_last_completion_with_anything() -> None:
    assert resolve(resuming([5, 6], [], [7], [], num_completions=4)).resumed_ids == ((5, 6), (), (7,))
    assert resolve(resuming([], sampling=sampling_pb2.SamplingParams())).resumed_ids == ()
    greedy = sampling_pb2.SamplingParams(temperature=0.0)
    assert resolve(resuming([5], sampling=greedy)).resumed_ids == ((5,),)
    assert resolve(resuming([5], sampling=greedy, acceptance_rule=REJECTION)).resumed_ids == ((5,),)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (resuming([5], sampling=sampling_pb2.SamplingParams()), "needs the seed"),
        (resuming([5], acceptance_rule=REJECTION), "needs the coupled rule"),
        (resuming([5], [6]), "has 2 entries; there are 1 completions"),
        (resuming([5], [TINY_VOCAB_SIZE], num_completions=2), r"\[1\] has an id outside the vocabulary of 320"),
        (resuming([5] * 4, max_new_tokens=3), r"\[0\] has 4 ids; max_new_tokens is 3"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(asked: generation_pb2.GenerateRequest, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        resolve(asked)


def test_more_than_the_context_holds_is_refused() -> None:
    prompt = len(resolve(text("hi")).prompt_ids)
    room = CONTEXT - prompt
    assert len(resolve(resuming([5] * room)).resumed_ids[0]) == room
    with pytest.raises(OutOfRangeError, match=rf"has {room + 1} ids; .* context holds {room}"):
        resolve(resuming([5] * (room + 1)))


def test_every_rule_is_named_in_full() -> None:
    """The default rule of a request is coupled, so a request that names none can be gone on with."""
    assert resolve(resuming([5]), model_info()).acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED

"""Whose request it is: checked, hashed, told to the draft service and to nobody else."""

from __future__ import annotations

import grpc
import pytest

from orchestrator.tenant import MAX_TENANT_BYTES, tenant_key
from specdec.errors import InvalidArgumentError
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.resolving import MODEL_INFO, model_info, resolve, text
from tests.orchestrator.running import request, running
from tests.orchestrator.serving import until

NAME = "acme-corporation"


def test_a_key_is_a_hash_of_the_name_and_the_vocabulary() -> None:
    key = tenant_key(NAME, "abc")
    assert len(key) == 32
    assert NAME.encode() not in key
    assert key == tenant_key(NAME, "abc")
    assert len({key, tenant_key(NAME, "abd"), tenant_key(NAME.upper(), "abc"), tenant_key(NAME + " ", "abc")}) == 4
    # No two pairs run together into one.
    assert tenant_key("bc", "a") != tenant_key("c", "ab")


@pytest.mark.parametrize("name", ["\0", " ", "é" * (MAX_TENANT_BYTES // 2)])
def test_any_name_is_one(name: str) -> None:
    assert len(tenant_key(name, "abc")) == 32


def test_no_name_is_nobody() -> None:
    assert tenant_key("", "abc") == b""
    assert resolve(text()).tenant == resolve(text(tenant="")).tenant == b""


@pytest.mark.parametrize("name", ["x" * (MAX_TENANT_BYTES + 1), "é" * (MAX_TENANT_BYTES // 2 + 1)])
def test_a_name_that_is_too_long_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"tenant has .* at most {MAX_TENANT_BYTES}") as refusal:
        resolve(text(tenant=name))
    assert name not in str(refusal.value)


def test_a_request_has_the_key_of_its_tenant_for_the_targets_vocabulary() -> None:
    assert resolve(text(tenant=NAME)).tenant == tenant_key(NAME, MODEL_INFO.tokenizer_hash)
    other = model_info(tokenizer_hash="another")
    assert resolve(text(tenant=NAME), other).tenant == tenant_key(NAME, "another")


async def test_the_draft_service_is_told_the_key_at_every_open_and_nobody_is_told_the_name(
    short_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = FakeTarget(), FakeDraft()
    target.delay_seconds = 0.01
    with caplog.at_level("DEBUG"):
        async with running(target, draft) as run:
            result = await run.generate(request(tenant=NAME))
            assert result.finished is not None
            key = tenant_key(NAME, target.model_info.tokenizer_hash)
            draft.sequences.clear()  # so that the next commit is refused, and the sequence opened again
            again = run.stub.Generate(request(max_new_tokens=200, num_completions=2, tenant=NAME))
            await until(lambda: len(draft.sequences) == 2)
            draft.break_streams()
            async for _ in again:
                pass
            opens = [command.open for command in draft.commands if command.HasField("open")]
            assert {opening.epoch for opening in opens} >= {1, 2}
            assert {opening.tenant for opening in opens} == {key}
    sent = b"".join(command.SerializeToString() for command in (*draft.commands, *target.commands))
    assert NAME.encode() not in sent
    assert key not in b"".join(command.SerializeToString() for command in target.commands)
    assert NAME not in caplog.text
    assert key.hex() not in caplog.text


async def test_without_a_tenant_the_draft_service_is_told_of_none() -> None:
    draft = FakeDraft()
    async with running(FakeTarget(), draft) as run:
        await run.generate()
    assert {command.open.tenant for command in draft.commands if command.HasField("open")} == {b""}


async def test_a_client_that_sends_too_long_a_name_is_told_so() -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await run.generate(request(tenant="x" * 300))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not target.commands
    assert not draft.commands

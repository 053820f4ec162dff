"""Features over gRPC: what the service says of itself, and messages that a customary peer takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import numpy
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specdec.models.loading import LoadedModel
from specdec.runner.attention import ATTENTION_NAME
from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.table_model import loaded_table, target_and_draft
from tests.specdec.runner.tiny_architectures import plain_states
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_tokenizer_files

HIDDEN_SIZE = 2048
CONTEXT_LENGTH = 1024
MIB = 1 << 20
CUSTOMARY_BYTES = 4 * MIB


def wide_llama() -> LlamaForCausalLM:
    """One thin layer on wide states: 4 KiB of features a token."""
    config = LlamaConfig(
        vocab_size=TINY_VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=CONTEXT_LENGTH,
        pad_token_id=None,
    )
    config._attn_implementation = ATTENTION_NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    return model


def loaded(model: PreTrainedModel) -> LoadedModel:
    info = model_pb2.ModelInfo(
        model_id="wide", vocab_size=TINY_VOCAB_SIZE, max_context_length=CONTEXT_LENGTH, dtype="float32", device="cpu"
    )
    return LoadedModel(model, info, tiny_tokenizer_files())


@asynccontextmanager
async def served(model: LoadedModel) -> AsyncIterator[Any]:
    """A stub of a target service; its messages have at most gRPC's customary size."""
    service = TargetService(TargetSettings(max_num_sequences=16, max_batch_rows=4096), lambda: model)
    async with (
        ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2.0) as host,
        open_channel(host.address, max_message_bytes=CUSTOMARY_BYTES) as channel,
    ):
        yield target_pb2_grpc.TargetServiceStub(channel)


def open_command(number: int, token_ids: list[int], max_feature_tokens: int = 1 << 20) -> target_pb2.TargetCommand:
    return target_pb2.TargetCommand(
        sequence_id=number.to_bytes(16, "big"),
        open=target_pb2.TargetOpen(
            epoch=1,
            token_ids=token_ids,
            prompt_length=len(token_ids),
            sampling=SamplingParams(temperature=0.0).to_proto(),
            acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
            max_length=CONTEXT_LENGTH,
            feature_states=[1],
            max_feature_tokens=max_feature_tokens,
        ),
    )


async def opened(stub: Any, commands: list[target_pb2.TargetCommand]) -> tuple[list[bytes], list[int]]:
    """Features of each open by its number, and the sizes of the messages that they came in."""
    stream = stub.Verify(timeout=60)
    await stream.write(target_pb2.VerifyRequest(commands=commands))
    features: dict[int, bytes] = {}
    sizes = []
    while len(features) < len(commands):
        response = await stream.read()
        assert response is not grpc.aio.EOF
        sizes.append(response.ByteSize())
        for event in response.events:
            assert event.HasField("opened"), event
            features[int.from_bytes(event.sequence_id, "big")] = event.opened.first.features
    stream.cancel()
    return [features[number] for number in sorted(features)], sizes


async def test_features_of_long_prompts_come_in_messages_that_a_customary_peer_takes() -> None:
    model = wide_llama()
    prompt = [2 + 7 * place % 300 for place in range(700)]
    async with served(loaded(model)) as stub:
        info = (await stub.GetModelInfo(target_pb2.TargetServiceGetModelInfoRequest())).model_info
        assert (info.hidden_size, info.num_hidden_states) == (HIDDEN_SIZE, 1)
        found, sizes = await opened(stub, [open_command(number, [number, *prompt]) for number in range(4)])
        assert sum(sizes) > 2 * CUSTOMARY_BYTES - MIB
        assert max(sizes) <= CUSTOMARY_BYTES
        assert {len(features) for features in found} == {2 * MIB}
        for number, features in enumerate(found):
            upper = numpy.frombuffer(features, "<u2").astype("<u4") << 16  # bfloat16 is the upper half of float32.
            states = torch.from_numpy(upper.view("<f4")).view(-1, HIDDEN_SIZE)
            expected = plain_states(model, [number, *prompt])[-512:, 0]
            torch.testing.assert_close(states, expected, atol=1e-4, rtol=1e-2)
        # Smaller ones travel together, as many as fit.
        found, sizes = await opened(stub, [open_command(number, [number, 9, *prompt], 256) for number in range(10, 14)])
        assert {len(features) for features in found} == {MIB}
        assert max(sizes) <= CUSTOMARY_BYTES


async def next_event(stream: Any) -> target_pb2.TargetEvent:
    """Past messages that only tell the load."""
    while not (events := cast("target_pb2.VerifyResponse", await stream.read()).events):
        pass
    (event,) = events
    return event


async def test_a_model_without_layers_gives_none_and_serves() -> None:
    table = loaded_table(target_and_draft(1)[0])
    async with served(table) as stub:
        info = (await stub.GetModelInfo(target_pb2.TargetServiceGetModelInfoRequest())).model_info
        assert info.hidden_size == info.num_hidden_states == 0
        stream = stub.Verify(timeout=30)
        command = open_command(1, [0, 1, 2])
        command.open.max_length = 16
        await stream.write(target_pb2.VerifyRequest(commands=[command]))
        event = await next_event(stream)
        assert event.failed.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "feature_states must increase from 1 to at most 0" in event.failed.message
        command.sequence_id = bytes(15) + b"2"
        command.open.ClearField("feature_states")
        await stream.write(target_pb2.VerifyRequest(commands=[command]))
        event = await next_event(stream)
        assert event.HasField("opened")
        assert event.opened.first.features == b""
        stream.cancel()


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_values_and_counts_over_the_wire(max_tokens: int) -> None:
    model = wide_llama()
    async with served(loaded(model)) as stub:
        (features,), _ = await opened(stub, [open_command(1, [5, 6, 7, 8], max_tokens)])
    assert len(features) == max_tokens * HIDDEN_SIZE * 2

"""The gRPC side of the target service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc

from specdec import PROTOCOL_VERSION
from specdec.engine.limits import max_message_bytes
from specdec.engine.provision import provide_memory
from specdec.engine.service import EngineHost
from specdec.engine.stream import run_stream
from specdec.errors import UnavailableError
from specdec.models.loading import LoadedModel
from specdec.runner.hidden_states import HiddenStates, NoPlainLayersError
from specdec.runner.runner import ModelRunner
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.serving.health import Health
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc
from target_service.asked import num_windows
from target_service.engine import TargetEngine
from target_service.measuring import measure_forward_costs
from target_service.sequence import TargetSequence
from target_service.settings import TargetSettings

_log = logging.getLogger(__name__)

_PART_BYTES = 1 << 20


class TargetService(target_pb2_grpc.TargetServiceServicer):
    """Serves one target model.

    Args:
        settings: limits of the service.
        load: gives the model; blocks, and is called off the event loop.
    """

    full_names = (target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name,)

    def __init__(self, settings: TargetSettings, load: Callable[[], LoadedModel]) -> None:
        self._settings = settings
        self._load = load
        self._model: LoadedModel | None = None
        self._host: EngineHost[target_pb2.TargetCommand, target_pb2.TargetEvent, TargetSequence] = EngineHost("target")
        self.max_message_bytes = max_message_bytes(settings.max_context_length, settings.max_num_draft_tokens)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the methods to a server."""
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

    async def start(self, health: Health) -> None:
        """Load the model and begin to serve.

        Raises:
            ModelError: the model cannot be served.
        """
        model = await asyncio.to_thread(self._load)
        model.info.MergeFrom(
            model_pb2.ModelInfo(
                protocol_version=PROTOCOL_VERSION,
                max_num_draft_tokens=self._settings.max_num_draft_tokens,
                max_num_sequences=self._settings.max_num_sequences,
                acceptance_rules=ACCEPTANCE_RULES,
                takes_window_batches=True,
            )
        )
        hidden_states = _hidden_states(model)
        runner = ModelRunner(model.model, model.info.vocab_size, hidden_states, keeps_states=True)
        model.info.forward_costs.extend(
            await asyncio.to_thread(
                measure_forward_costs, runner, self._settings.max_batch_rows, model.info.max_context_length
            )
        )
        memory = await asyncio.to_thread(
            provide_memory,
            runner,
            model.info,
            self._settings,
            max_num_queued=self._settings.max_queued_sequences,
        )
        engine = TargetEngine(
            runner,
            model.info,
            model.model.device,
            memory,
            max_batch_rows=self._settings.max_batch_rows,
            prefill_chunk_rows=self._settings.prefill_chunk_rows,
            hidden_states=hidden_states,
            lease_seconds=self._settings.lease_seconds,
        )
        self._model = model
        self._host.start(engine, health)

    async def drain(self) -> None:
        """Refuse further sequences and wait for the open ones."""
        await self._host.drain()

    async def close(self) -> None:
        """Stop the engine."""
        await self._host.close()

    async def GetModelInfo(  # noqa: N802 - named by the proto
        self,
        request: target_pb2.TargetServiceGetModelInfoRequest,
        context: grpc.aio.ServicerContext[
            target_pb2.TargetServiceGetModelInfoRequest, target_pb2.TargetServiceGetModelInfoResponse
        ],
    ) -> target_pb2.TargetServiceGetModelInfoResponse:
        """Facts of the target."""
        return target_pb2.TargetServiceGetModelInfoResponse(model_info=self._loaded_model().info)

    async def GetTokenizer(  # noqa: N802 - named by the proto
        self,
        request: target_pb2.GetTokenizerRequest,
        context: grpc.aio.ServicerContext[target_pb2.GetTokenizerRequest, target_pb2.GetTokenizerResponse],
    ) -> AsyncIterator[target_pb2.GetTokenizerResponse]:
        """The tokenizer, in parts."""
        files = self._loaded_model().tokenizer_files
        yield target_pb2.GetTokenizerResponse(chat_template=files.chat_template, special_tokens=files.special_tokens)
        for start in range(0, len(files.tokenizer_json), _PART_BYTES):
            yield target_pb2.GetTokenizerResponse(tokenizer_json=files.tokenizer_json[start : start + _PART_BYTES])

    async def Verify(  # noqa: N802 - named by the proto
        self,
        request_iterator: AsyncIterator[target_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext[target_pb2.VerifyRequest, target_pb2.VerifyResponse],
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """One orchestrator's stream."""
        news = self._host.load_news()
        async for events in run_stream(
            request_iterator, lambda message: message.commands, self._host.thread, lambda: news.is_due, num_windows
        ):
            yield target_pb2.VerifyResponse(events=events, load=news.tell())

    def _loaded_model(self) -> LoadedModel:
        if self._model is None:
            raise UnavailableError("the target service is still loading its model; try again shortly")
        return self._model


def _hidden_states(model: LoadedModel) -> HiddenStates | None:
    """What features of this model are made of, entered into its facts; None if it has no plain list of layers."""
    try:
        hidden_states = HiddenStates(model.model)
    except NoPlainLayersError as error:
        _log.info("no features can be given: %s", error)
        return None
    model.info.hidden_size = model.model.config.hidden_size
    model.info.num_hidden_states = hidden_states.num_states
    return hidden_states

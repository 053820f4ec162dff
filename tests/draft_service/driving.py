"""A draft engine driven by hand: no gRPC, no threads, every forward pass counted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.drafter import Drafter
from draft_service.engine import DraftEngine
from specdec.checksum import prefix_checksum
from specdec.engine.leases import LEASE_SECONDS
from specdec.engine.memory import CacheMemory
from specdec.engine.stream import Arrival
from specdec.runner.pool import KVPool
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.plain_decoding import GREEDY
from tests.specdec.engine.recording import RecordingConnection
from tests.specdec.runner.recording_runner import RecordingRunner
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

MAX_STEPS = 1000

DraftConnection = RecordingConnection[draft_pb2.DraftEvent]


class Engine:
    """The engine around some drafter."""

    def __init__(self, drafter: Drafter, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.engine = DraftEngine(drafter, lease_seconds=lease_seconds)

    def tell(self, connection: DraftConnection, *commands: draft_pb2.DraftCommand | None) -> None:
        """Hand over commands without working on them; None ends the stream."""
        self.engine.handle([Arrival(connection, command, time.perf_counter()) for command in commands])

    def work(self) -> None:
        """Step until nothing is left."""
        for _ in range(MAX_STEPS):
            if not self.engine.step():
                return
        raise AssertionError("the engine does not get anywhere")

    def ask(self, connection: DraftConnection, *commands: draft_pb2.DraftCommand) -> list[draft_pb2.DraftEvent]:
        """Hand over commands, work, and take the answers."""
        self.tell(connection, *commands)
        self.work()
        return connection.take()


class ModelEngine(Engine):
    """The engine with a tiny language model."""

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        *,
        max_batch_rows: int = 64,
        max_context_length: int = 512,
        max_num_draft_tokens: int = 8,
        max_num_sequences: int = 16,
        max_law_size: int = 16,
        confidence_threshold: float = 0.0,
        memory: CacheMemory | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.model = model or tiny_llama()
        self.runner = RecordingRunner(self.model, TINY_VOCAB_SIZE)
        info = model_pb2.ModelInfo(
            vocab_size=TINY_VOCAB_SIZE,
            max_context_length=max_context_length,
            max_num_draft_tokens=max_num_draft_tokens,
            max_num_sequences=max_num_sequences,
            acceptance_rules=ACCEPTANCE_RULES,
        )
        self.memory = memory or CacheMemory(KVPool(256))
        self.drafter = CausalLMDrafter(
            self.runner,
            info,
            torch.device("cpu"),
            self.memory,
            prefill_chunk_rows=max_batch_rows,
            max_batch_rows=max_batch_rows,
            max_law_size=max_law_size,
            confidence_threshold=confidence_threshold,
        )
        super().__init__(self.drafter, lease_seconds=lease_seconds)


class Client:
    """The orchestrator's side of one sequence: the truth, and what was proposed last."""

    _counter = itertools.count(1)

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        rule: model_pb2.AcceptanceRule.ValueType = model_pb2.ACCEPTANCE_RULE_COUPLED,
        connection: DraftConnection | None = None,
        tenant: bytes = b"",
        max_length: int = 0,
    ) -> None:
        self.engine = engine
        self.connection = connection or DraftConnection()
        self.sequence_id = next(self._counter).to_bytes(16, "little")
        self.token_ids = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.rule = rule
        self.tenant = tenant
        self.max_length = max_length
        self.epoch = 0
        self.round = 0
        self.proposed: list[int] = []
        self.features = b""
        """Of the target, for the next commit."""

    def open_command(self, num_draft_tokens: int) -> draft_pb2.DraftCommand:
        self.epoch += 1
        self.proposed = []
        return draft_pb2.DraftCommand(
            sequence_id=self.sequence_id,
            open=draft_pb2.DraftOpen(
                epoch=self.epoch,
                token_ids=self.token_ids,
                prompt_length=self.prompt_length,
                sampling=self.params.to_proto(),
                acceptance_rule=self.rule,
                round=self.round,
                num_draft_tokens=num_draft_tokens,
                tenant=self.tenant,
                max_length=self.max_length,
            ),
        )

    def commit_command(self, num_accepted: int, next_token: int, num_draft_tokens: int) -> draft_pb2.DraftCommand:
        """The outcome of a round; the truth grows by it."""
        self.round += 1
        base_length = len(self.token_ids)
        self.token_ids += [*self.proposed[:num_accepted], next_token]
        self.proposed = []
        features, self.features = self.features, b""
        return draft_pb2.DraftCommand(
            sequence_id=self.sequence_id,
            commit=draft_pb2.DraftCommit(
                epoch=self.epoch,
                round=self.round,
                base_length=base_length,
                num_accepted_tokens=num_accepted,
                next_token_id=next_token,
                committed_length=len(self.token_ids),
                checksum=prefix_checksum(self.token_ids),
                num_draft_tokens=num_draft_tokens,
                features=features,
            ),
        )

    def close_command(self) -> draft_pb2.DraftCommand:
        return draft_pb2.DraftCommand(sequence_id=self.sequence_id, close=draft_pb2.DraftClose())

    def take(self, event: draft_pb2.DraftEvent, num_draft_tokens: int) -> draft_pb2.Proposal:
        """Check an answer and take it over."""
        assert event.WhichOneof("event") == "proposal", event.failed.message
        assert (event.sequence_id, event.epoch, event.round) == (self.sequence_id, self.epoch, self.round)
        proposal = event.proposal
        assert proposal.base_length == len(self.token_ids)
        assert len(proposal.token_ids) <= num_draft_tokens
        self.proposed = list(proposal.token_ids)
        return proposal

    def open(self, num_draft_tokens: int) -> draft_pb2.Proposal:
        """Open and take the first proposal."""
        (event,) = self.engine.ask(self.connection, self.open_command(num_draft_tokens))
        return self.take(event, num_draft_tokens)

    def commit(self, num_accepted: int, next_token: int, num_draft_tokens: int) -> draft_pb2.Proposal:
        """Tell an outcome and take the next proposal."""
        command = self.commit_command(num_accepted, next_token, num_draft_tokens)
        (event,) = self.engine.ask(self.connection, command)
        return self.take(event, num_draft_tokens)

    def close(self) -> None:
        """End the sequence."""
        self.engine.tell(self.connection, self.close_command())

    def refused(self, command: draft_pb2.DraftCommand) -> tuple[int, str]:
        """Send what must be refused: the code and the reason."""
        (event,) = self.engine.ask(self.connection, command)
        assert event.sequence_id == self.sequence_id
        assert event.WhichOneof("event") == "failed"
        return event.failed.code, event.failed.message

"""A target engine with a tiny model, driven by hand: no gRPC, no threads, every forward pass counted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from specdec.checksum import prefix_checksum
from specdec.engine.leases import LEASE_SECONDS
from specdec.engine.memory import CacheMemory
from specdec.engine.stream import Arrival
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.pool import KVPool
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import model_pb2, target_pb2
from target_service.engine import TargetEngine
from tests.plain_decoding import GREEDY
from tests.specdec.engine.recording import RecordingConnection
from tests.specdec.runner.recording_runner import RecordingRunner
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

CPU = torch.device("cpu")
MAX_STEPS = 1000

TargetConnection = RecordingConnection[target_pb2.TargetEvent]


class Target:
    """The engine."""

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        *,
        max_batch_rows: int = 64,
        max_context_length: int = 256,
        max_num_draft_tokens: int = 16,
        max_num_sequences: int = 16,
        memory: CacheMemory | None = None,
        prefill_chunk_rows: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.model = model or tiny_llama()
        hidden_states = HiddenStates(self.model)
        self.runner = RecordingRunner(self.model, TINY_VOCAB_SIZE, hidden_states)
        info = model_pb2.ModelInfo(
            vocab_size=TINY_VOCAB_SIZE,
            max_context_length=max_context_length,
            max_num_draft_tokens=max_num_draft_tokens,
            max_num_sequences=max_num_sequences,
            acceptance_rules=ACCEPTANCE_RULES,
            hidden_size=self.model.config.hidden_size,
            num_hidden_states=hidden_states.num_states,
        )
        self.memory = memory or CacheMemory(KVPool(256))
        self.engine = TargetEngine(
            self.runner,
            info,
            CPU,
            self.memory,
            max_batch_rows=max_batch_rows,
            prefill_chunk_rows=prefill_chunk_rows or max_batch_rows,
            hidden_states=hidden_states,
            lease_seconds=lease_seconds,
        )

    def tell(self, connection: TargetConnection, *commands: target_pb2.TargetCommand | None) -> None:
        """Hand over commands without working on them; None ends the stream."""
        self.engine.handle([Arrival(connection, command, time.perf_counter()) for command in commands])

    def work(self) -> None:
        """Step until nothing is left."""
        for _ in range(MAX_STEPS):
            if not self.engine.step():
                return
        raise AssertionError("the engine does not get anywhere")

    def ask(self, connection: TargetConnection, *commands: target_pb2.TargetCommand) -> list[target_pb2.TargetEvent]:
        """Hand over commands, work, and take the answers."""
        self.tell(connection, *commands)
        self.work()
        return connection.take()


class Client:
    """The orchestrator's side of one sequence: the truth, and the checks that go with it."""

    _counter = itertools.count(1)

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        max_length: int = 64,
        rule: model_pb2.AcceptanceRule.ValueType = model_pb2.ACCEPTANCE_RULE_COUPLED,
        connection: TargetConnection | None = None,
        cache_salt: bytes = b"",
        feature_states: Sequence[int] = (),
        max_feature_tokens: int = 1 << 20,
    ) -> None:
        self.feature_states = feature_states
        self.max_feature_tokens = max_feature_tokens
        self.target = target
        self.cache_salt = cache_salt
        self.connection = connection or TargetConnection()
        self.sequence_id = next(self._counter).to_bytes(16, "little")
        self.token_ids = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.max_length = max_length
        self.rule = rule
        self.epoch = 0
        self.round = 0
        self.num_accepted: list[int] = []

    def open_command(self) -> target_pb2.TargetCommand:
        self.epoch += 1
        return target_pb2.TargetCommand(
            sequence_id=self.sequence_id,
            open=target_pb2.TargetOpen(
                epoch=self.epoch,
                token_ids=self.token_ids,
                prompt_length=self.prompt_length,
                sampling=self.params.to_proto(),
                acceptance_rule=self.rule,
                max_length=self.max_length,
                round=self.round,
                cache_salt=self.cache_salt,
                feature_states=self.feature_states,
                max_feature_tokens=self.max_feature_tokens,
            ),
        )

    def window_command(
        self, draft_tokens: Sequence[int] = (), parents: Sequence[int] | None = None
    ) -> target_pb2.TargetCommand:
        self.round += 1
        return target_pb2.TargetCommand(
            sequence_id=self.sequence_id,
            window=target_pb2.Window(
                epoch=self.epoch,
                round=self.round,
                base_length=len(self.token_ids),
                checksum=prefix_checksum(self.token_ids),
                token_ids=draft_tokens,
                parents=parents or (),
            ),
        )

    def close_command(self) -> target_pb2.TargetCommand:
        return target_pb2.TargetCommand(sequence_id=self.sequence_id, close=target_pb2.TargetClose())

    def commit(self, event: target_pb2.TargetEvent, command: target_pb2.TargetCommand) -> target_pb2.Verdict:
        """Check an answer against its command and take it over."""
        assert (event.sequence_id, event.epoch, event.round) == (self.sequence_id, self.epoch, self.round), event
        window = command.window
        verdict = event.opened.first if command.HasField("open") else event.verdict
        assert event.WhichOneof("event") == ("opened" if command.HasField("open") else "verdict"), event.failed.message
        parents = window.parents or range(-1, len(window.token_ids) - 1)
        nodes = [-1, *verdict.accepted_nodes]
        assert [parents[node] for node in nodes[1:]] == nodes[:-1]
        assert verdict.base_length == len(self.token_ids)
        assert verdict.num_judged_tokens <= len(window.token_ids)
        assert all(node < verdict.num_judged_tokens for node in nodes)
        self.token_ids += [*(window.token_ids[node] for node in nodes[1:]), verdict.next_token_id]
        assert verdict.committed_length == len(self.token_ids) <= self.max_length
        self.num_accepted.append(len(nodes) - 1)
        return verdict

    def open(self) -> target_pb2.Verdict:
        """Open, and take the first token."""
        command = self.open_command()
        (event,) = self.target.ask(self.connection, command)
        return self.commit(event, command)

    def verify(self, draft_tokens: Sequence[int] = (), parents: Sequence[int] | None = None) -> target_pb2.Verdict:
        """One round."""
        command = self.window_command(draft_tokens, parents)
        (event,) = self.target.ask(self.connection, command)
        return self.commit(event, command)

    def refused(self, command: target_pb2.TargetCommand) -> tuple[int, str]:
        """Send what must be refused: the code and the reason. The sequence is closed by it."""
        before = len(self.target.runner.passes)
        (event,) = self.target.ask(self.connection, command)
        assert event.sequence_id == self.sequence_id
        assert event.WhichOneof("event") == "failed"
        assert len(self.target.runner.passes) == before, "what is refused is not run"
        return event.failed.code, event.failed.message

    def refused_by_the_model(self) -> int:
        """Open a sequence that the model cannot run: the code."""
        (event,) = self.target.ask(self.connection, self.open_command())
        code: int = event.failed.code
        return code


Drafts = tuple[list[int], list[int] | None]
Drafting = Callable[[Client], Drafts]


def no_drafts(client: Client) -> Drafts:
    return [], None


def generate(client: Client, drafting: Drafting = no_drafts) -> list[int]:
    """Open and run rounds until `max_length`; returns all tokens."""
    client.open()
    while len(client.token_ids) < client.max_length:
        client.verify(*drafting(client))
    return client.token_ids

"""Checks of shared key-value memory: under pressure and sharing, every token is the one computed by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from transformers import PreTrainedModel

from specdec.checksum import prefix_checksum
from specdec.engine.memory import CacheMemory
from specdec.engine.stream import Arrival
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner
from specdec.sampling.noise import Stream, gumbel_reference, noise_key
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import model_pb2, target_pb2
from target_service.engine import TargetEngine
from tests.exactness.prefix_model import VOCAB_SIZE, PrefixModel, logits_behind
from tests.specdec.engine.recording import RecordingConnection

_BLOCK_TOKENS, _NUM_BLOCKS = 4, 16
_NUM_DRAFT_TOKENS = 5
_NUM_STEPS = 400
_SEEDS = range(2)
_COLD = SamplingParams(temperature=0.0)
_INFO = model_pb2.ModelInfo(
    vocab_size=VOCAB_SIZE,
    max_context_length=40,
    max_num_draft_tokens=_NUM_DRAFT_TOKENS,
    max_num_sequences=64,
    acceptance_rules=ACCEPTANCE_RULES,
)


@dataclass
class _Text:
    """One request, seen from the orchestrator."""

    name: bytes
    token_ids: list[int]
    prompt_length: int
    params: SamplingParams
    max_length: int
    round: int = 0
    window: target_pb2.Window = field(default_factory=target_pb2.Window)
    is_waiting: bool = True

    def chosen_by_hand(self, history: Sequence[int]) -> int:
        """The target's token behind these."""
        scores = list(logits_behind(tuple(history)))
        if not self.params.is_greedy:
            key = noise_key(self.params.seed, len(history), Stream.TARGET)
            scores = [score + gumbel_reference(key, token) for token, score in enumerate(scores)]
        return max(range(VOCAB_SIZE), key=lambda token: scores[token])


class _Load:
    """Texts that come, run, are cancelled and come again, on one engine whose memory is too small for them."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        # More is promised than there is by far, so that caches are lost all the time.
        self.memory = CacheMemory(KVPool(_NUM_BLOCKS, _BLOCK_TOKENS), overcommit=5.0, max_num_queued=64)
        runner = ModelRunner(cast("PreTrainedModel", PrefixModel()), VOCAB_SIZE)
        self.engine = TargetEngine(
            runner, _INFO, PrefixModel.device, self.memory, max_batch_rows=24, prefill_chunk_rows=7
        )
        self.connection: RecordingConnection[target_pb2.TargetEvent] = RecordingConnection()
        self.texts: dict[bytes, _Text] = {}
        self.finished: list[list[int]] = [[self.source.randrange(VOCAB_SIZE) for _ in range(17)]]
        self.num_opened = self.num_cached = 0

    def run(self) -> None:
        for step in range(_NUM_STEPS):
            if len(self.texts) < 8 and step < _NUM_STEPS - 50:
                self._open()
            for text in list(self.texts.values()):
                if not text.is_waiting and self.source.random() < 0.7:
                    self._ask(text)
                elif self.source.random() < 0.01:
                    self._close(text)
            self.engine.step()
            for event in self.connection.take():
                self._take(event)
        while any(text.is_waiting for text in self.texts.values()):
            assert self.engine.step(), "the engine does not get anywhere"
            for event in self.connection.take():
                self._take(event)
        for text in list(self.texts.values()):
            self._close(text)
        blocks = self.memory.pool.blocks
        assert blocks.num_used == 0, "blocks are held and nobody is there"
        assert blocks.num_available == _NUM_BLOCKS, "blocks were lost"
        assert min(blocks.num_evictions, self.memory.num_preemptions, self.num_cached) > 50, (
            "nothing was put to the test"
        )

    def _open(self) -> None:
        """A prompt that begins like an earlier text, often all of it."""
        earlier = self.source.choice(self.finished[-6:])
        kept = earlier[: self.source.choice([len(earlier), len(earlier), self.source.randrange(1, len(earlier) + 1)])]
        prompt = [*kept, *(self.source.randrange(VOCAB_SIZE) for _ in range(self.source.randrange(3)))]
        prompt = prompt[: self.source.randrange(1, 30)]
        params = _COLD if self.source.random() < 0.5 else SamplingParams(seed=self.source.randrange(100))
        for _ in range(self.source.choice([1, 1, 3])):
            self.num_opened += 1
            name = self.num_opened.to_bytes(16, "big")
            max_length = len(prompt) + self.source.randrange(1, 11)
            text = _Text(name, list(prompt), len(prompt), params, max_length)
            self.texts[name] = text
            opening = target_pb2.TargetOpen(
                epoch=1,
                token_ids=prompt,
                prompt_length=len(prompt),
                sampling=params.to_proto(),
                acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
                max_length=max_length,
            )
            self._tell(target_pb2.TargetCommand(sequence_id=name, open=opening))

    def _ask(self, text: _Text) -> None:
        """A chain or a tree, of tokens that are often right."""
        text.round += 1
        tokens: list[int] = []
        parents: list[int] = []
        paths: list[list[int]] = []
        is_chain = self.source.random() < 0.5
        for _ in range(self.source.randrange(_NUM_DRAFT_TOKENS + 1)):
            parent = len(tokens) - 1 if is_chain else self.source.randrange(-1, len(tokens))
            path = paths[parent] if parent >= 0 else text.token_ids
            is_right = self.source.random() < 0.7
            token = text.chosen_by_hand(path) if is_right else self.source.randrange(VOCAB_SIZE)
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                paths.append([*path, token])
        text.window = target_pb2.Window(
            epoch=1,
            round=text.round,
            base_length=len(text.token_ids),
            checksum=prefix_checksum(text.token_ids),
            token_ids=tokens,
            parents=parents,
        )
        text.is_waiting = True
        self._tell(target_pb2.TargetCommand(sequence_id=text.name, window=text.window))

    def _take(self, event: target_pb2.TargetEvent) -> None:
        text = self.texts.get(event.sequence_id)
        if text is None:
            return
        assert not event.HasField("failed"), f"a sequence failed: {event.failed.message}"
        verdict = event.opened.first if event.HasField("opened") else event.verdict
        self.num_cached += event.opened.num_cached_tokens
        for token in (*(text.window.token_ids[node] for node in verdict.accepted_nodes), verdict.next_token_id):
            expected = text.chosen_by_hand(text.token_ids)
            assert token == expected, f"{token} instead of {expected} at {len(text.token_ids)}"
            text.token_ids.append(token)
        text.is_waiting = False
        if len(text.token_ids) >= text.max_length:
            self.finished.append(text.token_ids)
            self._close(text)

    def _close(self, text: _Text) -> None:
        del self.texts[text.name]
        self._tell(target_pb2.TargetCommand(sequence_id=text.name, close=target_pb2.TargetClose()))

    def _tell(self, command: target_pb2.TargetCommand) -> None:
        self.engine.handle([Arrival(self.connection, command, time.perf_counter())])


def check_shared_memory() -> None:
    """Prefixes are shared, evicted, written again and lost to older sequences; ids are those computed by hand."""
    try:
        for seed in _SEEDS:
            _Load(seed).run()
    except (ValueError, LookupError, MemoryError) as error:
        raise AssertionError(f"the engine failed: {error!r}") from error

"""A sequence as the target service knows it: a cache of what the orchestrator has committed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from opentelemetry.trace import INVALID_SPAN, Span

from specdec.checksum import prefix_checksum
from specdec.engine.connection import Connection
from specdec.engine.limits import MAX_CACHE_SALT_BYTES
from specdec.engine.sequences import check_token_ids
from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.features import MAX_BYTES, MAX_STATES, feature_bytes
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.runner import Work
from specdec.sampling.params import SamplingParams
from specdec.telemetry import names
from specdec.telemetry.tracing import start_remote_span
from specdec.v1 import model_pb2, target_pb2
from target_service.answer import Answer
from target_service.candidates import CandidateWindows
from target_service.judge import DraftWindow, Judge


@dataclass(slots=True, eq=False)
class TargetSequence:
    """Committed tokens, and their keys and values."""

    connection: Connection[target_pb2.TargetEvent]
    sequence_id: bytes
    epoch: int
    token_ids: list[int]
    max_length: int
    params: SamplingParams
    judge: Judge
    rule: model_pb2.AcceptanceRule.ValueType
    checksum: int
    cache: SequenceCache
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=2))
    """The answer to the last round, repeated if it is asked again. If that was by a candidate, to the one before too:
    its asker may not have it yet."""
    candidates: CandidateWindows | None = None
    """For the round behind the one that is under way."""
    previous_checksum: int = 0
    """Of the prefix that the last verdict was judged from."""
    feature_states: tuple[int, ...] = ()
    """Hidden states that its verdicts carry as features."""
    max_feature_tokens: int = 0
    """Of how many tokens a verdict carries them at most."""
    answered: float = -math.inf
    """When that was; seconds of `time.perf_counter`."""

    @classmethod
    def from_open(
        cls,
        connection: Connection[target_pb2.TargetEvent],
        sequence_id: bytes,
        command: target_pb2.TargetOpen,
        info: model_pb2.ModelInfo,
        device: torch.device,
        pool: KVPool,
    ) -> TargetSequence:
        """Check an open and make the sequence.

        Raises:
            InvalidArgumentError: a field has no meaning here, or a token id is outside the vocabulary.
            OutOfRangeError: the committed tokens leave no room for another one.
        """
        if len(command.token_ids) >= info.max_context_length:
            raise OutOfRangeError(
                f"{len(command.token_ids)} tokens leave no room for another one in the context of "
                f"{info.max_context_length}"
            )
        token_ids = list(command.token_ids)
        check_token_ids("token_ids", token_ids, info.vocab_size)
        if not 1 <= command.prompt_length <= len(token_ids):
            raise InvalidArgumentError(
                f"prompt_length is {command.prompt_length}; it must be between 1 and the {len(token_ids)} tokens sent"
            )
        if command.acceptance_rule not in info.acceptance_rules:
            raise InvalidArgumentError("acceptance_rule is not one of those that this target advertises")
        if not 1 <= command.max_length <= info.max_context_length:
            raise InvalidArgumentError(
                f"max_length is {command.max_length}; it must be between 1 and the context of {info.max_context_length}"
            )
        if len(token_ids) >= command.max_length:
            raise OutOfRangeError(
                f"{len(token_ids)} tokens leave no room for another one within max_length {command.max_length}"
            )
        if len(command.cache_salt) > MAX_CACHE_SALT_BYTES:
            raise InvalidArgumentError(
                f"cache_salt has {len(command.cache_salt)} bytes; at most {MAX_CACHE_SALT_BYTES} are taken"
            )
        check_feature_states(command.feature_states, info)
        params = SamplingParams.from_proto(command.sampling)
        params.check_token_ids(info.vocab_size)
        cache = SequenceCache(pool, command.cache_salt)
        cache.needed_states = tuple(command.feature_states)
        return cls(
            connection=connection,
            sequence_id=sequence_id,
            epoch=command.epoch,
            token_ids=token_ids,
            max_length=command.max_length,
            params=params,
            judge=Judge(params, command.prompt_length, command.acceptance_rule, device),
            rule=command.acceptance_rule,
            checksum=prefix_checksum(token_ids),
            cache=cache,
            feature_states=tuple(command.feature_states),
            max_feature_tokens=_most_feature_tokens(len(command.feature_states), info),
        )

    def fit_window(self, window: DraftWindow) -> DraftWindow:
        """The nodes, cut where they would leave no room for the target's own token within `max_length`."""
        room = self.max_length - len(self.token_ids) - 1
        if len(window.token_ids) <= room:
            return window  # Nearly always.
        if window.parents is None:
            count = room
        else:
            depths: list[int] = []
            for parent in window.parents:
                depth = depths[parent] + 1 if parent >= 0 else 1
                if depth > room:
                    break
                depths.append(depth)
            count = len(depths)
        return DraftWindow(
            window.token_ids[:count],
            None if window.parents is None else window.parents[:count],
            None if window.laws is None else window.laws[:count],
        )

    @property
    def last_answer(self) -> Answer | None:
        """The answer to the last round."""
        return self.answers[-1] if self.answers else None

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append the outcome of a round."""
        self.previous_checksum = self.checksum
        self.token_ids.extend(token_ids)
        self.checksum = prefix_checksum(token_ids, self.checksum)


@dataclass(slots=True, eq=False)
class PendingRound:
    """A window that waits for its verdict; the round of an open has no draft tokens."""

    sequence: TargetSequence
    round: int
    window: DraftWindow
    span: Span
    arrived: float
    is_open: bool = False
    is_batched: bool = False
    """It was asked for in a batch, and may be answered in one."""
    candidate: int | None = None
    """Which of the round's candidates the window was; None: it was asked for."""
    started: float | None = None
    """When its first forward pass began; seconds of `time.perf_counter`, as `arrived`."""
    compute_seconds: float = 0.0
    max_feature_tokens: int = 0
    """Of how many tokens its verdict is to carry features; 0: of those that are run for it."""
    without_features: bool = False
    """It is to carry none."""
    tells_early: bool = False
    """Features of an open are told as they are there, and its verdict carries the rest."""
    num_told: int = 0
    """Tokens up to which that was done."""
    cache: SequenceCache = field(init=False)
    """Of the sequence. A pass asks for it, and for what follows, many times a round; so they are no properties."""
    token_ids: list[int] = field(init=False)
    """Committed tokens."""
    num_window_rows: int = field(init=False)
    """Draft tokens to verify."""

    def __post_init__(self) -> None:
        self.cache, self.token_ids = self.sequence.cache, self.sequence.token_ids
        self.num_window_rows = len(self.window.token_ids)

    def work(self, num_rows: int, now: float, *, finishes: bool) -> Work:
        """Its rows in a pass that begins now: so many uncached tokens, or all of them and the window."""
        if self.started is None:
            self.started = now
        first = self.cache.length
        if not finishes:
            return Work(self.cache, self.token_ids[first : first + num_rows], 0)
        token_ids = [*self.token_ids[first:], *self.window.token_ids]
        return Work(self.cache, token_ids, self.num_window_rows + 1, self.window.parents)

    def features(self) -> bytes:
        """Features for its verdict, as they travel, once its window is judged and before the outcome is committed.

        Of the last committed token and the accepted ones, or of as many of the last tokens as are asked for. They begin
        behind a token whose states are not there because it was run when nobody wanted any.
        """
        sequence, cache = self.sequence, self.cache
        if not sequence.feature_states or self.without_features or (self.is_open and not self.max_feature_tokens):
            return b""
        wanted = min(self.max_feature_tokens, sequence.max_feature_tokens)
        first = min(len(sequence.token_ids) - 1, max(self.num_told, cache.length - wanted))
        return self._wire(first, cache.length)

    def early_features(self, end: int) -> Iterator[model_pb2.FeaturesTold]:
        """Those up to a token that were not told yet, if they are to be, in parts that fit into messages.

        Args:
            end: behind that token, which has been run.
        """
        sequence = self.sequence
        while self.tells_early and self.num_told < end:
            start = max(self.num_told, len(self.token_ids) - self.max_feature_tokens)
            self.num_told = min(end, start + sequence.max_feature_tokens)
            if start < end and (features := self._wire(start, self.num_told)):
                yield model_pb2.FeaturesTold(end=self.num_told, features=features)

    def _wire(self, first: int, end: int) -> bytes:
        """Features of tokens, or of the last ones of them, as they travel."""
        features, num_tokens = self.cache.states(self.sequence.feature_states, first, end)
        if not num_tokens:
            return b""
        wire: bytes = features.cpu().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()
        return wire

    @property
    def num_uncached_tokens(self) -> int:
        """Committed tokens without keys and values: one in a running sequence, all of them at first."""
        return len(self.token_ids) - self.cache.length

    @property
    def is_prefill(self) -> bool:
        """Whether it is more than one: the sequence is new, or lost its cache."""
        return len(self.token_ids) - self.cache.length > 1


def check_feature_states(numbers: Sequence[int], info: model_pb2.ModelInfo) -> None:
    """Check which features are asked for.

    Raises:
        InvalidArgumentError: the target does not have them, or they are too many.
    """
    if len(numbers) > MAX_STATES:
        raise InvalidArgumentError(f"feature_states has {len(numbers)} numbers; at most {MAX_STATES} are given")
    if numbers and not (
        numbers[0] >= 1 and numbers[-1] <= info.num_hidden_states and sorted(set(numbers)) == list(numbers)
    ):
        raise InvalidArgumentError(
            f"feature_states must increase from 1 to at most {info.num_hidden_states}, the hidden states of this target"
        )


def _most_feature_tokens(num_states: int, info: model_pb2.ModelInfo) -> int:
    """Of how many tokens a message may carry features."""
    size = feature_bytes(num_states, info.hidden_size)
    return MAX_BYTES // size if size else 0


def start_window_span(
    context: model_pb2.TraceContext | None, sequence: TargetSequence, round_index: int, window: DraftWindow
) -> Span:
    """The span of a round, under the trace that came with its command, if any."""
    if context is None or not context.traceparent:
        return INVALID_SPAN
    attributes = {
        names.ROUND_INDEX: round_index,
        names.ROUND_BASE_LENGTH: len(sequence.token_ids),
        names.ROUND_NUM_DRAFT_TOKENS: len(window.token_ids),
        names.SEQUENCE_EPOCH: sequence.epoch,
    }
    return start_remote_span(names.TARGET_WINDOW, context, attributes)

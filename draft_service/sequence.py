"""A sequence as the draft service knows it, and a proposal in the making."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from opentelemetry.trace import Span

from draft_service.feature_log import FeatureLog
from draft_service.token_tree import Level, grow_tree
from specdec.candidates import MAX_CANDIDATES
from specdec.checksum import prefix_checksum
from specdec.engine.connection import Connection
from specdec.engine.limits import LARGEST_CONTEXT_LENGTH
from specdec.engine.sequences import check_prefix, check_token_ids
from specdec.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from specdec.sampling.laws import DraftLaw
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2

_TENANT_BYTES = 32


@dataclass(slots=True, eq=False)
class DraftSequence:
    """Committed tokens, and the last proposal that continued them."""

    connection: Connection[draft_pb2.DraftEvent]
    sequence_id: bytes
    epoch: int
    token_ids: list[int]
    prompt_length: int
    params: SamplingParams
    rule: model_pb2.AcceptanceRule.ValueType
    checksum: int
    max_length: int = 0
    """Tokens that it may come to; 0: nobody said."""
    tenant: bytes = b""
    """A hash of whose request it is; empty: nobody's."""
    proposed: list[int] = field(default_factory=list)
    """Tokens of the last proposal, for its round's commit."""
    parents: list[int] = field(default_factory=list)
    """Of the last proposal, if it was a tree."""
    num_kept: int = 0
    """Accepted tokens of the last round that its chain of draft steps began with."""
    features: FeatureLog | None = None
    """Of the target; None: the drafter reads none."""

    @property
    def may_follow_others(self) -> bool:
        """Whether drafts may depend on what other sequences wrote, or on which of their drafts were accepted.

        Not where the law of the text rests on random numbers that the draft must know nothing of: by the rejection and
        block rules. They follow from the request's seed. Another request with this seed, the same one sent again for
        example, was judged by the same numbers, so what became of it tells which drafts they accept.
        """
        return self.rule == model_pb2.ACCEPTANCE_RULE_COUPLED or self.params.is_greedy

    @classmethod
    def from_open(
        cls,
        connection: Connection[draft_pb2.DraftEvent],
        sequence_id: bytes,
        command: draft_pb2.DraftOpen,
        info: model_pb2.ModelInfo,
    ) -> DraftSequence:
        """Check an open and make the sequence.

        Raises:
            InvalidArgumentError: a field has no meaning here, or a token id is outside the vocabulary.
        """
        token_ids = list(command.token_ids)
        check_token_ids("token_ids", token_ids, info.vocab_size)
        if not 1 <= command.prompt_length <= len(token_ids):
            raise InvalidArgumentError(
                f"prompt_length is {command.prompt_length}; it must be between 1 and the {len(token_ids)} tokens sent"
            )
        if command.acceptance_rule not in info.acceptance_rules:
            raise InvalidArgumentError("acceptance_rule is not one of those that this drafter advertises")
        if len(command.tenant) not in (0, _TENANT_BYTES):
            raise InvalidArgumentError(
                f"tenant has {len(command.tenant)} bytes; it must be empty or a hash of {_TENANT_BYTES}"
            )
        params = SamplingParams.from_proto(command.sampling)
        if info.vocab_size:
            params.check_token_ids(info.vocab_size)
        return cls(
            connection=connection,
            sequence_id=sequence_id,
            epoch=command.epoch,
            token_ids=token_ids,
            prompt_length=command.prompt_length,
            params=params,
            rule=command.acceptance_rule,
            checksum=prefix_checksum(token_ids),
            max_length=command.max_length,
            tenant=command.tenant,
            features=FeatureLog(len(info.feature_states), info.hidden_size, info.max_feature_tokens)
            if info.feature_states
            else None,
        )

    def take_features(self, told: model_pb2.FeaturesTold) -> None:
        """Keep features of committed tokens.

        Raises:
            InvalidArgumentError: they have no meaning here.
        """
        if self.features is None:
            raise InvalidArgumentError("this drafter reads no features")
        if told.end > len(self.token_ids):
            raise InvalidArgumentError(f"features end at token {told.end}; {len(self.token_ids)} are committed")
        self.features.add(self.features.read(told.features), told.end)

    def commit(self, commit: draft_pb2.DraftCommit, vocab_size: int) -> int:
        """Take note of a round's outcome; returns how many of the tokens proposed were accepted.

        Raises:
            InvalidArgumentError: the next token is outside the vocabulary, the accepted nodes are no path, or the
                features have no meaning here.
            OutOfRangeError: it gets longer than any sequence.
            FailedPreconditionError: the outcome does not continue what is known here; open the sequence again.
        """
        accepted = commit.num_accepted_tokens
        if accepted > len(self.proposed):
            raise FailedPreconditionError(
                f"{accepted} tokens were accepted, but the last proposal had {len(self.proposed)}; open again"
            )
        check_token_ids("next_token_id", [commit.next_token_id], vocab_size)
        if commit.committed_length != commit.base_length + accepted + 1:
            raise InvalidArgumentError("committed_length must be base_length + num_accepted_tokens + 1")
        nodes = self._accepted_nodes(commit)
        new_tokens = [*(self.proposed[node] for node in nodes), commit.next_token_id]
        if commit.committed_length > LARGEST_CONTEXT_LENGTH:
            raise OutOfRangeError(f"the sequence would have more than {LARGEST_CONTEXT_LENGTH} tokens")
        checksum = prefix_checksum(new_tokens, self.checksum)
        check_prefix(
            commit.base_length,
            commit.checksum,
            known_length=len(self.token_ids),
            known_checksum=checksum,
            what="commit",
        )
        if self.features is not None:
            self.features.add(self.features.read(commit.features), commit.committed_length - 1)
        self.token_ids.extend(new_tokens)
        self.checksum = checksum
        self.num_kept = next((place for place, node in enumerate(nodes) if node != place), accepted)
        self.proposed, self.parents = [], []
        return accepted

    def _accepted_nodes(self, commit: draft_pb2.DraftCommit) -> list[int]:
        nodes = list(commit.accepted_nodes) or list(range(commit.num_accepted_tokens))
        previous = -1
        for node in nodes:
            if node >= len(self.proposed) or (self.parents[node] if self.parents else node - 1) != previous:
                raise InvalidArgumentError("accepted_nodes are not a path from the root of the last proposal")
            previous = node
        if len(nodes) != commit.num_accepted_tokens:
            raise InvalidArgumentError("accepted_nodes must be empty or num_accepted_tokens of them")
        return nodes


@dataclass(slots=True, eq=False)
class Draft:
    """A proposal in the making."""

    sequence: DraftSequence
    round: int
    num_wanted: int
    """Tokens asked for of a model."""
    num_lookup: int
    """Tokens asked for of lookup, which costs no model; not fewer."""
    span: Span
    arrived: float
    is_open: bool
    is_early: bool = False
    """Only prefill, of the tokens whose features were told before the commit."""
    token_ids: list[int] = field(default_factory=list)
    max_steps: int = 0
    """Steps that a model may take; 0: one for each token."""
    levels: list[Level] = field(default_factory=list)
    """Of a tree: what the target may choose at each step so far."""
    laws: list[DraftLaw] = field(default_factory=list)
    """What each of them was sampled from; empty for deterministic and coupled drafts."""
    source: draft_pb2.DraftSource.ValueType = draft_pb2.DRAFT_SOURCE_UNSPECIFIED
    drafts_ahead: bool = False
    """Whether its outcome is to be drafted ahead for."""
    num_ahead_wanted: int = 0
    """Tokens of a continuation; 0: as many as of the proposal."""
    max_candidates: int = 0
    """Most continuations that are to be told before the outcome is known."""
    is_candidate: bool = False
    """It has been told before: the target is judging it already."""
    ahead: draft_pb2.AheadOutcome.ValueType = draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    """Whether it was itself drafted for in time."""
    num_ahead: int = 0
    """How many of its tokens were."""
    logits: list[torch.Tensor] = field(default_factory=list)
    """What each of them was chosen by, (vocab_size,), if its outcome is to be drafted ahead for."""
    survival: float = 1.0
    """Probability that the tokens so far and the next one are right, if the target is as sure as the draft model."""
    is_done: bool = False
    started: float | None = None
    """When work on it began; seconds of `time.perf_counter`, as `arrived`."""
    compute_seconds: float = 0.0
    batch_sequences: int = 0
    batch_rows: int = 0
    step_seconds: float = 0.0
    """What a step of the model takes of late; 0: not known."""

    def window(self) -> tuple[list[int], list[int]]:
        """The tokens to propose, and their parents if they are a tree."""
        if not self.levels:
            return self.token_ids, []
        tree = grow_tree(self.levels, self.num_wanted)
        return tree.token_ids, tree.parents

    @property
    def is_tree(self) -> bool:
        """Whether a model is to add runners-up to the tokens of its steps."""
        is_chosen_alike = self.sequence.rule == model_pb2.ACCEPTANCE_RULE_COUPLED or self.sequence.params.is_greedy
        return 0 < self.max_steps < self.num_wanted and is_chosen_alike

    @property
    def is_asked(self) -> bool:
        """Whether a proposal is wanted; else it is only prefill."""
        return self.num_lookup > 0

    @property
    def num_known(self) -> int:
        """Tokens that may be run now: those committed, and its own; of a prefill, as far as features have been told."""
        features = self.sequence.features
        if features is None or self.is_asked:
            return self.base_length + len(self.token_ids)
        return min(self.base_length, features.end)

    @property
    def base_length(self) -> int:
        """Committed tokens that it continues."""
        return len(self.sequence.token_ids)

    def finish(
        self, token_ids: Sequence[int], source: draft_pb2.DraftSource.ValueType, *, batch_sequences: int
    ) -> None:
        """Take over tokens that were found without a model."""
        self.token_ids = list(token_ids)
        self.source = source
        self.batch_sequences = batch_sequences
        self.is_done = True


def check_ahead(commit: draft_pb2.DraftCommit, sequence: DraftSequence, limit: int) -> None:
    """Check what a commit wants of drafting ahead.

    Args:
        commit: as it came.
        sequence: of the commit.
        limit: most tokens that are proposed at once.

    Raises:
        InvalidArgumentError: it is too much, or the sequence's rule has no candidates.
    """
    if commit.num_ahead_tokens > limit:
        raise InvalidArgumentError(
            f"num_ahead_tokens is {commit.num_ahead_tokens}; at most {limit} are proposed at once"
        )
    if commit.max_candidates > MAX_CANDIDATES:
        raise InvalidArgumentError(f"max_candidates is {commit.max_candidates}; at most {MAX_CANDIDATES} are told")
    if commit.max_candidates and not sequence.may_follow_others:
        raise InvalidArgumentError("candidates are for the coupled rule and for temperature 0 only")

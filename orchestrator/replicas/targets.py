"""The replicas of the target."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from orchestrator.links.link import SILENCE_SECONDS
from orchestrator.links.target import TargetLink
from orchestrator.replicas.addresses import Addresses
from orchestrator.replicas.affinity import PrefixMemory
from orchestrator.replicas.replicas import Replicas
from orchestrator.tokenizer import PromptTokenizer
from specdec.errors import UnavailableError
from specdec.serving.channel_security import ChannelSecurity
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import model_pb2

_log = logging.getLogger(__name__)


class TargetKind(NamedTuple):
    """What replicas must have in common for a sequence to go on from one to another."""

    tokenizer_hash: str
    vocab_size: int
    weights_fingerprint: str

    @classmethod
    def of(cls, model_info: model_pb2.ModelInfo) -> TargetKind:
        return cls(model_info.tokenizer_hash, model_info.vocab_size, model_info.weights_fingerprint)

    def difference(self, other: TargetKind) -> str:
        """The first thing in which they differ, with both values; empty: nothing, as far as is known."""
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine and theirs and mine != theirs:
                return f"{name.replace('_', ' ')} {theirs!r} against {mine!r}"
        return ""


class Targets(Replicas[TargetLink]):
    """Replicas of one target. The first one that is reached says which model it is.

    Another model behind one of the addresses is left out, unless no replica of the first one is connected any more:
    then all were replaced, and new requests go to the new model.

    Args:
        addresses: where they are.
        metrics: where links count.
        on_change: as of `Replicas`.
        resolve_seconds: how often names are looked up again.
        security: of the links.
        silence_seconds: a replica that does not answer pings for so long is given up.
    """

    def __init__(
        self,
        addresses: Addresses,
        metrics: OrchestratorMetrics,
        on_change: Callable[[], None],
        *,
        resolve_seconds: float = 2.0,
        security: ChannelSecurity | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            addresses,
            lambda address: TargetLink(
                address, metrics, self._note_link, security=security, silence_seconds=silence_seconds
            ),
            on_change,
            resolve_seconds=resolve_seconds,
        )
        self.prefixes = PrefixMemory()
        self._reference: TargetLink | None = None
        """The replica that was believed last."""
        self._kind: TargetKind | None = None
        self._mismatches: dict[str, str] = {}

    @property
    def kind(self) -> TargetKind:
        """Of the model that is served.

        Raises:
            UnavailableError: no replica was reached yet.
        """
        if self._kind is None:
            raise UnavailableError(f"the target is not available: {self.problem}")
        return self._kind

    @property
    def model_info(self) -> model_pb2.ModelInfo | None:
        """Facts of the model, from the last handshake; None: there was none yet."""
        return self._reference.model_info if self._reference is not None else None

    @property
    def tokenizer(self) -> PromptTokenizer | None:
        """The model's; None: no replica was reached yet."""
        return self._reference.tokenizer if self._reference is not None else None

    @property
    def num_sequences(self) -> int:
        """Sequences open from here, on all replicas."""
        return sum(link.num_sequences for link in self.links)

    def mismatch_of(self, link: TargetLink) -> str:
        """See `Replicas`."""
        if self._kind is None or link.model_info is None:
            return ""
        difference = self._kind.difference(TargetKind.of(link.model_info))
        return f"it serves another model than the other replicas: {difference}" if difference else ""

    def _note_link(self) -> None:
        """Find out which model is served now."""
        connected = [link for link in self.links if link.is_available and link.model_info is not None]
        same = [link for link in connected if not self.mismatch_of(link)]
        if connected and not same:
            # None of the model is left: it was replaced.
            self._kind = None
            same = connected
        if same and (self._reference not in same or self._kind is None):
            self._reference = same[0]
        if self._reference is not None and self._reference.model_info is not None and same:
            self._kind = TargetKind.of(self._reference.model_info)
        mismatches = {link.address: mismatch for link in connected if (mismatch := self.mismatch_of(link))}
        for address, mismatch in mismatches.items():
            if self._mismatches.get(address) != mismatch:
                _log.error("the target at %s is left out: %s", address, mismatch)
        self._mismatches = mismatches
        self.note_change()

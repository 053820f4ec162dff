"""The replicas of the draft service."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.links.draft import DraftLink, ServedTarget
from orchestrator.links.link import SILENCE_SECONDS
from orchestrator.replicas.addresses import Addresses
from orchestrator.replicas.replicas import Replicas
from specdec.serving.channel_security import ChannelSecurity
from specdec.telemetry.metrics import OrchestratorMetrics


class Drafts(Replicas[DraftLink]):
    """Replicas of one drafter.

    Args:
        addresses: where they are.
        target: what they draft for.
        metrics: where links count.
        on_change: as of `Replicas`.
        resolve_seconds: how often names are looked up again.
        security: of the links.
        silence_seconds: a replica that does not answer pings for so long is given up.
    """

    def __init__(
        self,
        addresses: Addresses,
        target: ServedTarget,
        metrics: OrchestratorMetrics,
        on_change: Callable[[], None],
        *,
        resolve_seconds: float = 2.0,
        security: ChannelSecurity | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            addresses,
            lambda address: DraftLink(
                address, target, metrics, self.note_change, security=security, silence_seconds=silence_seconds
            ),
            on_change,
            resolve_seconds=resolve_seconds,
        )

    @property
    def reference(self) -> DraftLink | None:
        """The replica that says what the drafter is like: one that takes sequences, else one that once did."""
        known = [link for link in self.links if link.model_info is not None]
        return next(iter(self.accepting()), next(iter(known), None))

    @property
    def mismatch(self) -> str:
        """What keeps the drafter from working with the target. Empty: nothing does, or none was reached yet."""
        if self.is_available:
            return ""
        return next((link.mismatch for link in self.links if link.mismatch), "")

    @property
    def has_model(self) -> bool:
        """Whether a draft model may make windows; if nothing is known of the drafter, it may."""
        return self.reference is None or self.reference.has_model

    @property
    def feature_states(self) -> tuple[int, ...]:
        """Hidden states of the target that the drafter reads; empty if it cannot work with the target."""
        return self.reference.feature_states if self.reference is not None else ()

    @property
    def max_feature_tokens(self) -> int:
        """Of how many tokens the drafter takes features at once."""
        return self.reference.max_feature_tokens if self.reference is not None else 0

    @property
    def num_sequences(self) -> int:
        """Sequences open from here, on all replicas."""
        return sum(link.num_sequences for link in self.links)

    def mismatch_of(self, link: DraftLink) -> str:
        """See `Replicas`."""
        return link.mismatch

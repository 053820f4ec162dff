"""Several drafters at one target, so that they are measured against the same model and memory holds it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.measuring.drafters import WITH_MODEL
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.ports import choose_ports
from specdec.cli.service_group import ServiceSpec
from specdec.cli.three_services import ThreeServices


@dataclass(frozen=True)
class Deployment:
    """Services to start."""

    specs: tuple[ServiceSpec, ...]
    """The target, then a draft service and an orchestrator for each drafter."""
    addresses: dict[DrafterKind, str]
    """Of the orchestrator of each drafter."""

    @classmethod
    def plan(cls, base: ThreeServices, drafters: Sequence[DrafterKind], draft_model: str | None) -> Deployment:
        """Choose the ports.

        Args:
            base: what all services are told.
            drafters: each once, at least one.
            draft_model: of those that have one.
        """
        target_port, *ports = choose_ports([(base.host, 0)] * (1 + 2 * len(drafters)))
        target, *_ = replace(base, target_port=target_port).specs()
        specs = [target]
        addresses = {}
        for drafter, port, draft_port in zip(drafters, ports[::2], ports[1::2], strict=True):
            services = replace(
                base,
                drafter=drafter,
                draft_model=draft_model if drafter in WITH_MODEL else None,
                port=port,
                draft_port=draft_port,
            )
            specs += services.in_front_of(target.address, f"-{drafter}")
            addresses[drafter] = specs[-1].address
        return cls(tuple(specs), addresses)

"""The three services on one machine, as a group to start: which flags each of them gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.ports import choose_ports
from specdec.cli.service_group import ServiceSpec
from specdec.pipelines import PipelineSetting
from specdec.processors import num_processors
from specdec.settings import DEFAULT_DRAFTER_WITHOUT_MODEL, DEFAULT_MODEL

_LOOPBACK = "127.0.0.1"
_PREFIXES = {
    "target_service": "SPECDEC_TARGET_",
    "draft_service": "SPECDEC_DRAFT_",
    "orchestrator": "SPECDEC_ORCHESTRATOR_",
}
FOR_THIS_MACHINE_ALONE = {
    f"{prefix}{name}": ""
    for prefix in _PREFIXES.values()
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CA", "CLIENT_CA", "TOKEN_FILE", "ALLOWED_PEERS")
}
"""Variables for services that only this process calls, on the loopback interface: no certificates and no tokens."""
_DRAFT_SHARE = 0.25
"""Of the CPUs that all services share."""


@dataclass(frozen=True)
class ThreeServices:
    """What the three are told. None leaves a setting to the service: its environment variable, or else its default."""

    model: str | None = None
    drafter: DrafterKind | None = None
    draft_model: str | None = None
    """Implies the drafter "model", if none is named. None: the draft that comes with the embedded target."""
    num_draft_tokens: int | str | None = None
    """A number, or "auto"."""
    pipeline: PipelineSetting | None = None
    device: str | None = None
    draft_device: str | None = None
    """None: the same as `device`, or the first of several, which are for a target that is too large for one."""
    dtype: str | None = None
    num_threads: int | None = None
    """Threads of a forward pass on CPU, in the target and in the draft service. None: they share this machine's CPUs, a
    quarter for the draft service and the rest for the target, but one each at least; unless the environment says more.
    """
    log_level: str | None = None
    drain_seconds: float = 20.0
    host: str = _LOOPBACK
    """Where the orchestrator listens. The others listen on the loopback interface only."""
    port: int = 0
    target_port: int = 0
    draft_port: int = 0
    tls_cert: Path | None = None
    """Of the orchestrator, as the next ones."""
    tls_key: Path | None = None
    client_ca: Path | None = None
    token_file: Path | None = None
    insecure_bind: bool = False
    has_metrics: bool = False
    """Whether each serves its metrics to Prometheus, on a free port where it listens."""
    target_arguments: tuple[str, ...] = ()
    """Further flags of the service."""
    draft_arguments: tuple[str, ...] = ()
    orchestrator_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all three, on top of this process's own."""

    @property
    def drafter_flag(self) -> str | None:
        """The drafter that the flags ask for; None leaves it to the draft service."""
        if self.drafter is not None:
            return self.drafter
        if self.draft_model is not None:
            return "model"
        is_said = self._variable("SPECDEC_DRAFT_DRAFTER") or self._variable("SPECDEC_DRAFT_MODEL")
        # The draft model that is the default works with the embedded target only.
        return None if is_said or self.target_model in (None, DEFAULT_MODEL) else DEFAULT_DRAFTER_WITHOUT_MODEL

    @property
    def target_model(self) -> str | None:
        """The target model that the flags or the environment name, if they do."""
        return self.model or self._variable("SPECDEC_TARGET_MODEL")

    def specs(self) -> tuple[ServiceSpec, ...]:
        """Target, draft and orchestrator, in that order; ports that are 0 are chosen now.

        Raises:
            OSError: a port is in use.
        """
        port, target_port, draft_port = choose_ports(
            [(self.host, self.port), (_LOOPBACK, self.target_port), (_LOOPBACK, self.draft_port)]
        )
        target = self._spec(
            "target",
            "target_service",
            target_port,
            {
                "model": self.model,
                "device": self.device,
                "dtype": self.dtype,
                "num-threads": self._threads("SPECDEC_TARGET_NUM_THREADS", 1 - _DRAFT_SHARE),
            },
            self.target_arguments,
        )
        return (target, *replace(self, port=port, draft_port=draft_port).in_front_of(target.address))

    def in_front_of(self, target: str, suffix: str = "") -> tuple[ServiceSpec, ...]:
        """Draft and orchestrator alone, for a target that is started otherwise; ports that are 0 are chosen now.

        Args:
            target: its address.
            suffix: ends their names, where there are several of them.

        Raises:
            OSError: a port is in use.
        """
        port, draft_port = choose_ports([(self.host, self.port), (_LOOPBACK, self.draft_port)])
        drafter = self.drafter_flag
        draft = self._spec(
            f"draft{suffix}",
            "draft_service",
            draft_port,
            {
                "drafter": drafter,
                "model": self.draft_model,
                "target-model": None if self._variable("SPECDEC_DRAFT_TARGET_MODEL") else self.target_model,
                "device": self.device.partition(",")[0] if self.device and not self.draft_device else self.draft_device,
                # Trained drafts are not of 4 bits.
                "dtype": "bfloat16" if self.dtype == "int4" else self.dtype,
                "num-threads": self._threads("SPECDEC_DRAFT_NUM_THREADS", _DRAFT_SHARE),
            },
            self.draft_arguments,
        )
        orchestrator = self._spec(
            f"orchestrator{suffix}",
            "orchestrator",
            port,
            {
                "target": target,
                "draft": "" if drafter == "none" else draft.address,
                "num-draft-tokens": self.num_draft_tokens,
                "pipeline": self.pipeline,
                "tls-cert": self.tls_cert,
                "tls-key": self.tls_key,
                "client-ca": self.client_ca,
                "token-file": self.token_file,
                "insecure-bind": True if self.insecure_bind else None,
            },
            self.orchestrator_arguments,
            host=self.host,
        )
        return (orchestrator,) if drafter == "none" else (draft, orchestrator)

    def _threads(self, variable: str, share: float) -> int | None:
        """Of a service that has this share of the CPUs; None if its environment says how many."""
        if self.num_threads is not None or self._variable(variable) or self._variable("OMP_NUM_THREADS"):
            return self.num_threads
        # More than there are CPUs, both services together, wait for each other at every operator.
        return max(1, int(share * num_processors()))

    def _variable(self, name: str) -> str | None:
        """A variable that the services will see, if it is set and not empty."""
        return {**os.environ, **self.environment}.get(name) or None

    def _spec(
        self,
        name: str,
        module: str,
        port: int,
        flags: Mapping[str, str | float | bool | Path | None],
        arguments: tuple[str, ...],
        *,
        host: str = _LOOPBACK,
    ) -> ServiceSpec:
        # Whether it is ready must be seen without a certificate.
        has_health_port = bool(flags.get("tls-cert") or self._variable(f"{_PREFIXES[module]}TLS_CERT"))
        free_ports = choose_ports([(host, 0)] * (has_health_port + self.has_metrics))
        health_port = free_ports.pop() if has_health_port else None
        metrics_port = free_ports.pop() if self.has_metrics else None
        given = {
            "host": host,
            "port": port,
            "health-port": health_port,
            "metrics-port": metrics_port,
            "log-level": self.log_level,
            "drain-seconds": self.drain_seconds,
            **flags,
        }
        command = [
            f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in given.items() if value is not None
        ]
        return ServiceSpec(
            name=name,
            command=(sys.executable, "-m", module, *command, *arguments),
            address=f"{reachable(host)}:{port}",
            health_address="" if health_port is None else f"{reachable(host)}:{health_port}",
            environment=self.environment,
            metrics_address="" if metrics_port is None else f"{reachable(host)}:{metrics_port}",
            is_last=module == "orchestrator",
        )


def reachable(host: str) -> str:
    """The host to call from this machine for a server that listens on `host`, as it stands in an address."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host

"""Target and drafter behind a relay, with an orchestrator for each mode of the pipeline, and one client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from benchmarks.deployment.pass_log import PassReader
from benchmarks.deployment.services import Deployment, DeploymentPlan
from benchmarks.links.conditions import LinkConditions
from benchmarks.links.redirection import redirected
from benchmarks.links.relay_process import RelayProcess
from benchmarks.measuring.latency_cell import Generation
from specdec.cli.ports import choose_ports
from specdec.cli.service_group import ServiceGroup, ServiceSpec
from specdec.client import GenerationClient
from specdec.planning.pipeline import PipelineMode
from specdec.v1 import generation_pb2

_DRAIN_SECONDS = 2.0


class LatencyBench:
    """Services that are up.

    Args:
        deployment: of target and drafter, for their logs.
        relay: in front of the target.
        clients: of the orchestrator of each mode.
        time_scale: the round trips are stretched as the devices are.
    """

    def __init__(
        self,
        deployment: Deployment,
        relay: RelayProcess,
        clients: dict[PipelineMode, GenerationClient],
        time_scale: float,
    ) -> None:
        self._target_passes = PassReader(deployment.target_log)
        self._draft_passes = PassReader(deployment.draft_log)
        self._relay = relay
        self._clients = clients
        self._time_scale = time_scale

    async def generate(
        self, pipeline: PipelineMode, rtt_seconds: float, request: generation_pb2.GenerateRequest
    ) -> Generation:
        """One generation in one mode over one round trip.

        Raises:
            grpc.aio.AioRpcError: it failed.
            IncompleteGenerationError: its stream ended early.
        """
        await self._relay.change(LinkConditions(rtt_seconds=self._time_scale * rtt_seconds))
        arrivals: list[tuple[float, int]] = []
        rounds: list[generation_pb2.RoundReport] = []
        async for response in self._clients[pipeline].generate(request):
            if response.HasField("delta"):
                arrivals.append((time.perf_counter(), len(response.delta.token_ids)))
                if response.delta.round.round:
                    rounds.append(response.delta.round)
        (began, _), (ended, _) = arrivals[0], arrivals[-1]
        # The drafter may still be in a pass for what nobody asks for any more.
        await asyncio.sleep(0.1)
        return Generation(
            ended - began,
            sum(count for _, count in arrivals[1:]),
            tuple(rounds),
            tuple(self._target_passes.between(began, ended)),
            tuple(self._draft_passes.between(began, ended)),
        )


@asynccontextmanager
async def latency_bench(plan: DeploymentPlan, pipelines: Sequence[PipelineMode]) -> AsyncIterator[LatencyBench]:
    """Start everything, and end it with the block.

    Raises:
        ServiceFailedError: a service did not start.
        RelayFailedError: nor did the relay.
    """
    deployment = plan.deployment("split")
    *services, orchestrator = deployment.specs
    target = services[0]
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(RelayProcess(target.address))
        specs = {
            pipeline: redirected(_in_mode(orchestrator, pipeline), {target.address: relay.address})
            for pipeline in pipelines
        }
        await stack.enter_async_context(ServiceGroup([*services, *specs.values()], drain_seconds=_DRAIN_SECONDS))
        clients = {
            pipeline: await stack.enter_async_context(GenerationClient(spec.address))
            for pipeline, spec in specs.items()
        }
        yield LatencyBench(deployment, relay, clients, plan.time_scale)


def _in_mode(orchestrator: ServiceSpec, pipeline: PipelineMode) -> ServiceSpec:
    """An orchestrator at a port of its own in this mode."""
    host, _, _ = orchestrator.address.rpartition(":")
    (port,) = choose_ports([(host, 0)])
    command = [f"--port={port}" if part.startswith("--port=") else part for part in orchestrator.command]
    return replace(
        orchestrator,
        name=f"{orchestrator.name}-{pipeline}",
        command=(*command, f"--pipeline={pipeline}"),
        address=f"{host}:{port}",
    )

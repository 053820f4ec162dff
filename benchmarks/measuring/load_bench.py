"""The services under load, one point of the grid at a time."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import psutil

from benchmarks.deployment.pass_log import PassReader
from benchmarks.deployment.services import Deployment
from benchmarks.measuring.closed_loop import ClosedLoop
from benchmarks.measuring.load_figures import LoadWindow
from benchmarks.measuring.output_check import OutputCheck
from benchmarks.measuring.prompts import Prompt
from specdec.cli.service_group import ServiceGroup
from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, sampling_pb2

CLIENTS = "clients"
"""Name of this process among those whose CPU time is taken."""
_LONGEST_PASS_SECONDS = 5.0
_DRAIN_SECONDS = 2.0


class RequestMaker:
    """Requests over some prompts. A prompt always has the same seed, so its text is the same whatever the load and K.

    Args:
        prompts: what is asked.
        max_new_tokens: most new tokens of a request.
        temperature: of the softmax; 0 is greedy.
        seed: of the first prompt; the others count on.
        ignores_stops: every request writes `max_new_tokens`.
        is_cold: no request finds a prefix of another: each is of a tenant of its own.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        ignores_stops: bool,
        is_cold: bool,
    ) -> None:
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._seed = seed
        self._ignores_stops = ignores_stops
        self._tenants: Iterator[str] = (
            (f"request {number}" for number in itertools.count()) if is_cold else itertools.repeat("")
        )

    def __call__(self, prompt: int, num_draft_tokens: int | None) -> generation_pb2.GenerateRequest:
        """One request; K None leaves it to the server."""
        message = generation_pb2.ChatMessage(role="user", content=self._prompts[prompt].text)
        return generation_pb2.GenerateRequest(
            chat=generation_pb2.ChatInput(messages=[message]),
            sampling=sampling_pb2.SamplingParams(
                temperature=self._temperature, seed=self._seed + prompt, ignore_eos=self._ignores_stops
            ),
            max_new_tokens=self._max_new_tokens,
            num_draft_tokens=num_draft_tokens,
            tenant=next(self._tenants),
        )


class LoadBench:
    """A deployment that is up, and its clients."""

    def __init__(self, deployment: Deployment, group: ServiceGroup, loop: ClosedLoop, outputs: OutputCheck) -> None:
        self._loop = loop
        self._outputs = outputs
        self._target_passes = PassReader(deployment.target_log)
        self._draft_passes = PassReader(deployment.draft_log)
        self._processes = {spec.name: psutil.Process(group[spec.name].pid) for spec in deployment.specs}
        self._processes[CLIENTS] = psutil.Process(os.getpid())

    async def measure(
        self,
        num_clients: int,
        num_draft_tokens: int | None,
        *,
        warm_up_seconds: float,
        duration_seconds: float,
        streams: bool = True,
    ) -> LoadWindow:
        """Load the services, wait until all clients have had a token and the warm-up is over, and look for so long.

        Raises:
            grpc.aio.AioRpcError: a request failed.
            IncompleteGenerationError: a stream ended early.
        """
        async with self._loop.load(num_clients, num_draft_tokens, streams=streams) as load:
            if streams:
                await load.reach_all()
            await load.go_on(warm_up_seconds)
            before, began = self._cpu_seconds(), time.perf_counter()
            await load.go_on(duration_seconds)
            after, ended = self._cpu_seconds(), time.perf_counter()
            records = list(load.records)
        # A pass is logged at its end: the last one of the window may still run.
        passes = self._target_passes.between(began, ended)
        longest = max((entry.seconds for entry in passes), default=0.0)
        await asyncio.sleep(min(longest, _LONGEST_PASS_SECONDS))
        self._outputs.add(records)
        return LoadWindow(
            began,
            ended,
            records,
            self._target_passes.between(began, ended),
            self._draft_passes.between(began, ended),
            {name: after[name] - before[name] for name in before},
        )

    def _cpu_seconds(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: each.user + each.system for name, each in times.items()}


@asynccontextmanager
async def load_bench(
    deployment: Deployment, make_request: RequestMaker, num_prompts: int, outputs: OutputCheck
) -> AsyncIterator[LoadBench]:
    """Start a deployment and end it with the block.

    Raises:
        ServiceFailedError: a service did not start.
    """
    async with (
        ServiceGroup(deployment.specs, drain_seconds=_DRAIN_SECONDS) as group,
        GenerationClient(group.address) as client,
    ):
        yield LoadBench(deployment, group, ClosedLoop(client, make_request, num_prompts), outputs)

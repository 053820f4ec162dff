"""One generation by the services, measured at the client."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.measuring.measurement import Measurement
from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, sampling_pb2


@dataclass(frozen=True)
class ServedGeneration:
    """What the client saw, and what the services said of the rounds."""

    measurement: Measurement
    stats: generation_pb2.RoundStats
    round_overhead_seconds: tuple[float, ...]
    """For each round after the prefill: its wall time without the computing of draft and target. Negative where
    drafting was hidden behind verification."""


async def measure_served(
    client: GenerationClient,
    token_ids: list[int],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    num_draft_tokens: int | None,
) -> ServedGeneration:
    """Generate, noting when tokens arrive.

    Raises:
        grpc.aio.AioRpcError: the call failed.
        IncompleteGenerationError: the stream ended early.
    """
    request = generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=token_ids),
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=seed),
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
    )
    generated: list[int] = []
    arrivals: list[tuple[int, float]] = []
    rounds: list[generation_pb2.RoundReport] = []
    stats = generation_pb2.RoundStats()
    began = time.perf_counter()
    async for response in client.generate(request):
        if response.HasField("delta"):
            generated.extend(response.delta.token_ids)
            arrivals.append((len(generated), time.perf_counter()))
            rounds.append(response.delta.round)
        elif response.HasField("finished"):
            stats = response.finished.stats
    (num_first, first), (_, last) = arrivals[0], arrivals[-1]
    return ServedGeneration(
        Measurement(tuple(generated), num_first, first - began, last - first),
        stats,
        tuple(_overhead_seconds(report) for report in rounds if report.round > 0),
    )


def _overhead_seconds(report: generation_pb2.RoundReport) -> float:
    computing = report.draft.compute_microseconds + report.verify.compute_microseconds
    return (report.wall_microseconds - computing) / 1e6

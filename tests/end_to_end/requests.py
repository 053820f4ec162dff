"""Requests of the end-to-end tests and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specdec.client import GenerationClient, GenerationResult
from specdec.v1 import generation_pb2, sampling_pb2


def chat_request(
    prompt: str,
    *,
    max_new_tokens: int = 64,
    num_draft_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 1,
    tenant: str = "",
) -> generation_pb2.GenerateRequest:
    """One user turn."""
    return generation_pb2.GenerateRequest(
        chat=generation_pb2.ChatInput(messages=[generation_pb2.ChatMessage(role="user", content=prompt)]),
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=seed),
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        tenant=tenant,
    )


async def generate_all(address: str, requests: Sequence[generation_pb2.GenerateRequest]) -> list[GenerationResult]:
    """All of them at once, answers in the order of the requests."""
    async with GenerationClient(address, timeout_seconds=240) as client:
        return list(await asyncio.gather(*(client.collect(request) for request in requests)))

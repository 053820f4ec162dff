"""Scrapes the processes of a system, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from specdec.top.endpoint import Endpoint, EndpointError
from specdec.top.reading import Reading, reading, service_of
from specdec.top.scrape import Scrape

_TIMEOUT_SECONDS = 2.0


async def watch(endpoints: Sequence[Endpoint], interval_seconds: float) -> AsyncGenerator[list[Reading], None]:
    """A reading of each process, in their order: at once without rates, then with them after each interval.

    One that does not answer is a reading with its problem, and keeps nobody waiting for longer than two seconds.
    """
    before: dict[Endpoint, Scrape] = {}
    services: dict[Endpoint, str] = {}
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        answers = await asyncio.gather(*(_answer(endpoint) for endpoint in endpoints))
        readings = []
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, EndpointError):
                before.pop(endpoint, None)
                readings.append(Reading(str(endpoint), services.get(endpoint, ""), problem=str(answer)))
                continue
            read = reading(str(endpoint), before.get(endpoint), answer)
            before[endpoint] = answer
            # Before it has served anything a process may not tell what it is.
            services[endpoint] = service_of(answer) or services.get(endpoint, "")
            readings.append(replace(read, service=services[endpoint]))
        yield readings
        await asyncio.sleep(max(0.0, interval_seconds - (loop.time() - began)))


async def _answer(endpoint: Endpoint) -> Scrape | EndpointError:
    try:
        return await endpoint.scrape(_TIMEOUT_SECONDS)
    except EndpointError as error:
        return error

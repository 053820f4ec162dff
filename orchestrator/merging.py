"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """What the streams yield, as it comes, until all have ended; a single one as it is.

    Several run ahead of the reader by one item each. If one raises, its exception is raised here and the others are
    closed; so they are if this is closed.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    queue: asyncio.Queue[Item | _End] = asyncio.Queue(maxsize=len(streams))

    async def pump(stream: AsyncGenerator[Item, None]) -> None:
        failure: Exception | None = None
        try:
            async with aclosing(stream):
                async for item in stream:
                    await queue.put(item)
        except Exception as error:  # noqa: BLE001 - raised again where the items are read
            failure = error
        await queue.put(_End(failure))

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    num_running = len(tasks)
    try:
        while num_running:
            entry = await queue.get()
            if not isinstance(entry, _End):
                yield entry
            elif entry.failure is not None:
                raise entry.failure
            else:
                num_running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _End:
    """Behind the last item of a stream."""

    failure: Exception | None

"""A relay in a process of its own, steered from here."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from types import TracebackType

from typing_extensions import Self

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay import RelayCounts

_PATIENCE_SECONDS = 30.0


class RelayFailedError(Exception):
    """The relay's process did not start, or ended; the message ends with what it said."""


class RelayProcess:
    """Starts `python -m benchmarks.links` on entry and ends it on exit; an asynchronous context manager.

    The process also ends when this one does. A command returns when it has been carried out.

    Args:
        peer: HOST:PORT to pass on to. Nobody has to listen there yet.
        conditions: of the link.
        listen: HOST:PORT; port 0 is chosen by the system.
    """

    def __init__(self, peer: str, conditions: LinkConditions | None = None, *, listen: str = "127.0.0.1:0") -> None:
        self.address = ""
        """HOST:PORT to connect to, from entry on."""
        conditions = conditions or LinkConditions()
        self._arguments = (
            f"--to={peer}",
            f"--listen={listen}",
            f"--rtt-ms={1e3 * conditions.rtt_seconds!r}",
            f"--jitter-ms={1e3 * conditions.jitter_seconds!r}",
            f"--seed={conditions.seed}",
            *([] if conditions.bytes_per_second is None else [f"--bytes-per-second={conditions.bytes_per_second!r}"]),
        )
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """
        Raises:
            RelayFailedError: it could not listen there.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.links", "--commands", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            self.address = str((await self._answer())["address"])
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def change(self, conditions: LinkConditions) -> None:
        """Other conditions for all that arrives from now on; the jitter goes on as it was seeded."""
        await self._ask(json.dumps(asdict(conditions)))

    async def cut(self) -> None:
        """Reset every connection in both directions. What is under way is lost."""
        await self._ask("cut")

    async def refuse(self) -> None:
        """Refuse connections to come; those that are open go on."""
        await self._ask("refuse")

    async def accept(self) -> None:
        """Take connections again, at the same port."""
        await self._ask("accept")

    async def freeze(self) -> None:
        """Deliver nothing any more, and close nothing."""
        await self._ask("freeze")

    async def thaw(self) -> None:
        """Deliver all that is due by now, in order, and go on."""
        await self._ask("thaw")

    async def counts(self) -> RelayCounts:
        """What it has done so far."""
        return await self._ask("counts")

    async def _ask(self, command: str) -> RelayCounts:
        process = self._process
        if process is None or process.stdin is None:
            raise RelayFailedError("the relay was not started")
        async with self._turn:
            process.stdin.write(command.encode() + b"\n")
            answer = await self._answer()
        if "error" in answer:
            raise RelayFailedError(str(answer["error"]))
        return RelayCounts(**answer)

    async def _answer(self) -> dict[str, int]:
        assert self._process is not None  # noqa: S101 - callers checked
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = await asyncio.wait_for(self._process.stdout.readline(), _PATIENCE_SECONDS)
        if not line:
            assert self._process.stderr is not None  # noqa: S101 - it is a pipe
            said = (await self._process.stderr.read()).decode().strip()
            raise RelayFailedError(f"the relay ended: {said or 'it said nothing'}")
        answer: dict[str, int] = json.loads(line)
        return answer

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()  # The relay ends with it.
            await asyncio.wait_for(process.communicate(), _PATIENCE_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

"""One process of the system under test: what can be done to it, and what it says of itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import grpc.aio

from specdec.cli.child_process import ChildProcess
from specdec.cli.service_group import is_serving
from specdec.serving.channel import open_channel
from specdec.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc

Part = Literal["target", "draft", "orchestrator"]

_POLL_SECONDS = 0.05
_START_SECONDS = 120.0
_LOAD_SECONDS = 5.0
_LAST_LINES = 15
_MAX_MESSAGE_BYTES = 1 << 24


class MemberFailedError(Exception):
    """A process ended by itself, did not start, or did not end in time; the message ends with its last log lines."""


class Member:
    """A service in a process of its own.

    Args:
        name: in messages and in the report.
        part: which service it is.
        command: absolute path of the program, and its arguments.
        address: HOST:PORT where it listens.
        environment: variables on top of this process's own.
    """

    def __init__(
        self, name: str, part: Part, command: Sequence[str], address: str, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.part: Part = part
        self.address = address
        self.is_meant_to_run = False
        self.growth_bytes: list[int] = []
        """Of each life that ended or was looked at: resident memory, less that at its start."""
        self.errors: list[str] = []
        """Lines of its log of level ERROR, and Python's own of exceptions that nobody caught."""
        self._child = ChildProcess(name, command, environment=environment, on_line=self._look_at)
        self._resident_at_start = 0

    async def start(self) -> float:
        """Start it, and wait until it says SERVING. Gives the seconds that took.

        Raises:
            MemberFailedError: it did not.
        """
        began = time.monotonic()
        await self._child.start()
        self.is_meant_to_run = True
        await self.serving(_START_SECONDS)
        self._resident_at_start = self.resident_bytes
        return time.monotonic() - began

    async def serving(self, seconds: float) -> None:
        """Wait until it says SERVING.

        Raises:
            MemberFailedError: it does not in so many seconds, or has ended.
        """
        deadline = time.monotonic() + seconds
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        ) as channel:
            while not await is_serving(channel):
                self.check_running()
                if time.monotonic() > deadline:
                    raise self._failed(f"did not serve within {seconds:g} s")
                await asyncio.sleep(_POLL_SECONDS)

    async def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.note_growth()
        self.is_meant_to_run = False
        self._child.kill()
        await self._child.wait()

    async def drain(self, seconds: float) -> float:
        """Ask it to end (SIGTERM), and wait. Gives the seconds that took.

        Raises:
            MemberFailedError: it took longer than `seconds`, or ended with an error.
        """
        self.note_growth()
        self.is_meant_to_run = False
        began = time.monotonic()
        await self._child.stop(seconds)
        taken = time.monotonic() - began
        if self._child.ending != "ended with status 0":
            raise self._failed(f"{self._child.ending} {taken:.1f} s after SIGTERM")
        return taken

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        self._child.pause()

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._child.resume()

    async def close(self) -> None:
        """End it in any case."""
        self.is_meant_to_run = False
        await self._child.stop(0)

    @property
    def resident_bytes(self) -> int:
        """Its memory; 0 if it does not run."""
        try:
            pages = int(Path(f"/proc/{self._child.pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, RuntimeError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def check_running(self) -> None:
        """
        Raises:
            MemberFailedError: it has ended, and nobody made it.
        """
        if self.is_meant_to_run and not self._child.is_running:
            raise self._failed(self._child.ending)

    async def num_sequences(self) -> int:
        """Open sequences of a target or a draft service, as it tells everyone who connects.

        Raises:
            MemberFailedError: it does not answer.
        """
        async with open_channel(self.address, max_message_bytes=_MAX_MESSAGE_BYTES) as channel:
            try:
                if self.part == "target":
                    verify = target_pb2_grpc.TargetServiceStub(channel).Verify(timeout=_LOAD_SECONDS)
                    judged = await verify.read()
                    return judged.load.num_sequences if isinstance(judged, target_pb2.VerifyResponse) else 0
                propose = draft_pb2_grpc.DraftServiceStub(channel).Propose(timeout=_LOAD_SECONDS)
                proposed = await propose.read()
                return proposed.load.num_sequences if isinstance(proposed, draft_pb2.ProposeResponse) else 0
            except grpc.aio.AioRpcError as error:
                raise self._failed(f"does not tell its load: {error.code().name} {error.details()}") from error

    def note_growth(self) -> None:
        """Take down by how much its memory has grown since it started."""
        if resident := self.resident_bytes:
            self.growth_bytes.append(resident - self._resident_at_start)

    def _failed(self, what: str) -> MemberFailedError:
        last = "".join(f"\n  {line}" for line in list(self._child.lines)[-_LAST_LINES:])
        return MemberFailedError(f"{self.name} {what}; its last lines:{last or ' none'}")

    def _look_at(self, _: str, line: str) -> None:
        if " ERROR " in line or line.startswith("Traceback"):
            self.errors.append(line)

"""One child process: its log lines, its end, and the signals it can be sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

LineSink = Callable[[str, str], None]
"""Called with the name of a child and one line of its log, as it arrives."""

_KEPT_LINES = 5000
_LONGEST_LINE_BYTES = 64 * 1024
_LAST_WORDS_SECONDS = 2.0


class ChildProcess:
    """A child in its own process group, which a terminal's Ctrl-C does not reach; it never outlives this process.

    Must be started from the main thread: the bond between the two is one with the thread that starts the child.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        on_line: LineSink | None = None,
    ) -> None:
        """
        Args:
            name: used in messages and given to `on_line`.
            command: absolute path of the program, and its arguments.
            environment: variables set on top of this process's own.
            on_line: called with every line of standard output and standard error.
        """
        self.name = name
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        """The last lines of the log, oldest first."""
        self._command = tuple(command)
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the child, or start it again after its end."""
        if self.is_running:
            raise RuntimeError(f"{self.name} is running")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "specdec.cli.tied",
            str(os.getpid()),
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=self._environment,
        )
        self._log = asyncio.create_task(self._read_log(self._started.stdout), name=f"log of {self.name}")

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._started.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended (a paused one is running)."""
        return self._process is not None and self._process.returncode is None

    @property
    def ending(self) -> str:
        """How it ended, for a message: "ended with status 3", "was killed by SIGKILL", or "is running"."""
        status = self._started.returncode
        if status is None:
            return "is running"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    async def wait(self) -> int:
        """Wait for its end and its last lines; the exit status, negative for a signal."""
        status = await self._started.wait()
        assert self._log is not None  # noqa: S101
        # Bounded: a grandchild may hold the pipe open.
        await asyncio.wait({self._log}, timeout=_LAST_WORDS_SECONDS)
        self._log.cancel()
        return status

    def pause(self) -> None:
        """Freeze it: it keeps its memory and its connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it and its own children at once."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, wait, and kill it if it takes longer than `grace_seconds` or if this wait is cancelled."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        end = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({end}, timeout=grace_seconds)
        finally:
            self.kill()
            await end

    @property
    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _read_log(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None  # noqa: S101
        rest = b""
        while block := await stream.read(_LONGEST_LINE_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._add_line(line)
            if len(rest) > _LONGEST_LINE_BYTES:
                self._add_line(rest)
                rest = b""
        if rest:
            self._add_line(rest)

    def _add_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.lines.append(text)
        if self._on_line is not None:
            self._on_line(self.name, text)

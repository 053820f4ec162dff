"""The other end of `transformers_worker`: keeps this process free of torch."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from types import TracebackType
from typing import Any, Literal

from benchmarks.measuring.measurement import Measurement

Assistance = Literal["model", "lookup"]

_START_SECONDS = 900.0
_ANSWER_SECONDS = 1800.0
_LINE_BYTES = 16 * 1024 * 1024


class BaselineError(Exception):
    """The worker ended, or took too long."""


class TransformersBaseline:
    """transformers' `generate`, plain and assisted, in another process; an asynchronous context manager."""

    def __init__(
        self, *, model: str, draft_model: str | None, num_threads: int, device: str = "auto", dtype: str = "auto"
    ) -> None:
        """
        Args:
            model: target model, as `specdec.models` finds it.
            draft_model: what assists where that is asked of a model; None: nothing does.
            num_threads: threads of a forward pass on CPU.
            device: as for the services.
            dtype: as for the services.
        """
        self._command = [sys.executable, "-m", "benchmarks.measuring.transformers_worker", f"--model={model}"]
        self._command += [f"--num-threads={num_threads}", f"--device={device}", f"--dtype={dtype}"]
        if draft_model is not None:
            self._command.append(f"--draft-model={draft_model}")
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> TransformersBaseline:
        """
        Raises:
            BaselineError: the worker did not become ready.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "specdec.cli.tied", str(os.getpid())),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        try:
            await self._read(_START_SECONDS)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of the prompt of a conversation that begins with `text`."""
        answer = await self._ask({"command": "tokenize", "text": text})
        return [int(token_id) for token_id in answer["token_ids"]]

    async def generate(
        self,
        token_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        assistance: Assistance | None = None,
        num_assistant_tokens: int = 0,
    ) -> Measurement:
        """One generation; assisted by the draft model or by prompt lookup, if so asked."""
        answer = await self._ask(
            {
                "command": "generate",
                "token_ids": token_ids,
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "seed": seed,
                "assistance": assistance,
                "num_assistant_tokens": num_assistant_tokens,
            }
        )
        return Measurement(**{**answer, "token_ids": tuple(answer["token_ids"])})

    async def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        stdin = self._running.stdin
        assert stdin is not None  # noqa: S101
        stdin.write(json.dumps(request).encode() + b"\n")
        await stdin.drain()
        return await self._read(_ANSWER_SECONDS)

    async def _read(self, timeout_seconds: float) -> dict[str, Any]:
        stdout = self._running.stdout
        assert stdout is not None  # noqa: S101
        try:
            line = await asyncio.wait_for(stdout.readline(), timeout_seconds)
        except asyncio.TimeoutError as error:
            raise BaselineError(f"transformers has not answered within {timeout_seconds:g} seconds") from error
        if not line:
            raise BaselineError("the transformers process ended; its errors are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    async def _end(self) -> None:
        if self._running.returncode is None:
            self._running.kill()
        await self._running.wait()

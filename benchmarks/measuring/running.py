"""Runs what a benchmark's command is for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import typer

from specdec.cli.service_group import ServiceFailedError
from specdec.cli.signals import StoppedBySignal, until_signal
from specdec.client import IncompleteGenerationError

Result = TypeVar("Result")


def run_or_exit(name: str, work: Coroutine[Any, Any, Result], *failures: type[Exception]) -> Result:
    """Do the work and return what it does; a failure becomes one message on standard error and status 1.

    Args:
        name: of the benchmark, for the message.
        work: is stopped by a signal, as services are.
        failures: of this benchmark, whose own words are the message, besides those of services and calls.
    """
    expected: tuple[type[Exception], ...] = (ServiceFailedError, IncompleteGenerationError, OSError, *failures)
    try:
        return asyncio.run(until_signal(work))
    except StoppedBySignal as stopped:
        raise typer.Exit(stopped.exit_status) from stopped
    except grpc.aio.AioRpcError as error:
        raise _failure(name, f"{error.code().name}: {error.details()}") from error
    except expected as error:
        raise _failure(name, str(error)) from error


def _failure(name: str, message: str) -> typer.Exit:
    typer.echo(f"benchmarks.{name}: {message}", err=True)
    return typer.Exit(1)

"""Benchmarks as processes of their own, and their usage without one."""

import asyncio
import importlib
import os
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

from tests.specdec.cli.conftest import ROOT, Ended


async def run_benchmark(
    name: str, directory: Path, *arguments: str, timeout_seconds: float = 120, **environment: str
) -> Ended:
    """`python -m benchmarks.NAME ARGUMENTS` in a directory, whose packages come first, to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{name}", *arguments),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_seconds)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


def check_usage(name: str, *arguments: str) -> Ended:
    """What a benchmark says of arguments that it does not take, in this process: others import torch, for seconds."""
    app = typer.Typer()
    app.command()(importlib.import_module(f"benchmarks.{name}").main)
    result = CliRunner().invoke(app, arguments)
    return Ended(result.exit_code, result.stdout, result.stderr)

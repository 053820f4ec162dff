"""Benchmarks as processes of their own."""

import asyncio
import os
import sys
from pathlib import Path

from tests.specdec.cli.conftest import ROOT, Ended


async def run_benchmark(directory: Path, module: str, *arguments: str, **environment: str) -> Ended:
    """Run `python -m benchmarks.MODULE` in a directory, whose packages come first."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{module}", *arguments),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())

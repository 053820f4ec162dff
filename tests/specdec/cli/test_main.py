import subprocess
import sys
import time

import pytest

from tests.specdec.cli.conftest import Cli


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    program = """
import sys
from specdec.cli.main import app
assert app(["--help"], standalone_mode=False) in (0, None)
heavy = {"torch", "transformers", "numpy", "grpc", "pydantic", "huggingface_hub"} & set(sys.modules)
assert not heavy, heavy
"""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    # Generous: it takes a quarter of a second on an idle machine.
    assert time.monotonic() - began < 3
    for command in ("serve", "generate", "plan", "target", "draft", "orchestrator", "models", "token"):
        assert command in ended.stdout


@pytest.mark.parametrize("service", ["target", "draft", "orchestrator"])
async def test_a_service_gets_every_argument_as_it_is(cli: Cli, service: str) -> None:
    cli.environment[f"FAKE_{service.upper()}"] = "fail"
    ended = await cli.run(service, "--help", "--port=0", "--x", "y z", "-v")
    assert ended.status == 3
    assert ended.out.splitlines()[0] == "flags: --help --port=0 --x y z -v"


async def test_an_unknown_command_is_bad_usage(cli: Cli) -> None:
    assert (await cli.run("surve")).status == 2

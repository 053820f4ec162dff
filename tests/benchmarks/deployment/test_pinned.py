import os
import subprocess
import sys

from tests.specdec.cli.conftest import ROOT


def test_a_command_gets_the_cpus_that_are_named() -> None:
    cpu = max(os.sched_getaffinity(0))
    program = "import os; print(os.sched_getaffinity(0))"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.deployment.pinned", str(cpu), sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == str({cpu})

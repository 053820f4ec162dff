"""Run a command on some CPUs only.

python -m benchmarks.deployment.pinned CPU,CPU,... COMMAND ARGS...
"""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Take the CPUs, then become the command."""
    cpus, *command = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()

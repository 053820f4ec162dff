"""Run a command that dies with the process that started it.

    python -m specdec.cli.tied PARENT_PID COMMAND ARGS...

On Linux the kernel kills the command as soon as the parent is gone, however that happened. Elsewhere there is no such
bond, and only a parent that ends in order takes the command with it. A program of its own, because code between fork
and exec is not safe in a parent with gRPC's threads.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Tie this process to its parent, then become the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the bond existed.
    if os.getppid() != int(parent):
        raise SystemExit("the parent process is gone")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()

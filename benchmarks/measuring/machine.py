"""What the machine is and which versions ran: a number means little without them."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("specdec", "torch", "transformers", "tokenizers", "grpcio", "protobuf")


def machine_facts() -> dict[str, object]:
    """JSON values."""
    return {
        "processor": _processor(),
        "num_cpus": os.cpu_count(),
        # Well above 1 at the end of a benchmark of one client: something else was running too.
        "load_average_5_minutes": os.getloadavg()[1],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""What was measured of kernels, kept in the user's cache: one small file a shape, for each kind of machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from specdec.kernels.available import tiled_kernels
from specdec.kernels.kernel import KernelName
from specdec.kernels.linear import ROW_COUNTS
from specdec.kernels.measuring import Seconds, Shape
from specdec.models.cache import cache_directory

_FORMAT = 2
"""Part of every key; raised when a measurement of today would not be used any more."""


class _Record(BaseModel):
    """A file. What is not exactly this is not used."""

    model_config = ConfigDict(strict=True, extra="forbid")

    key: dict[str, str]
    seconds: dict[KernelName, dict[str, PositiveFloat]]


def load_seconds(shape: Shape, dtype: torch.dtype) -> Seconds | None:
    """What was measured for weights of this shape; None if nothing was, or the file is of no use."""
    key = _key(shape, dtype)
    try:
        record = _Record.model_validate_json(_path(key).read_bytes())
        seconds: Seconds = {
            name: {int(count): time for count, time in times.items()} for name, times in record.seconds.items()
        }
    except (OSError, ValidationError, ValueError):
        return None
    is_whole = seconds.get("default", {}).keys() == set(ROW_COUNTS)
    return seconds if record.key == key and is_whole else None


def save_seconds(shape: Shape, dtype: torch.dtype, seconds: Seconds) -> None:
    """Keep a measurement. A cache that cannot be written is no error: it is measured again next time."""
    key = _key(shape, dtype)
    path = _path(key)
    record = _Record(
        key=key,
        seconds={name: {str(count): time for count, time in times.items()} for name, times in seconds.items()},
    )
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(record.model_dump_json(), encoding="utf-8")
        draft.replace(path)


def _key(shape: Shape, dtype: torch.dtype) -> dict[str, str]:
    """All that the times depend on."""
    return {
        "format": str(_FORMAT),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numba": version("numba") if tiled_kernels() is not None else "",
        "threads": str(torch.get_num_threads()),
        "dtype": str(dtype),
        "shape": f"{shape[0]}x{shape[1]}",
    }


def _path(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_directory() / "kernels" / f"{key['shape']}-{digest[:16]}.json"


def _processor() -> str:
    """Name, family, model and cache of the processor, as far as Linux tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    fields = ("vendor_id", "model name", "cpu family", "model", "cache size")
    found = (re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE) for name in fields)
    return ", ".join(match[1].strip() for match in found if match)

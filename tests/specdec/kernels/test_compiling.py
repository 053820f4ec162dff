"""Compiling where there is a place to keep it, and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from specdec.kernels.compiling import compiled

_DOUBLE = "def double(values):\n    for place in range(len(values)):\n        values[place] *= 2\n"


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    """Numba finds no place for a function without a file, as where no directory can be written to."""
    names: dict[str, object] = {}
    exec(_DOUBLE, names)  # noqa: S102
    double = compiled("float32[::1]")(names["double"])  # type: ignore[arg-type]
    values = np.array([1, 2], np.float32)
    double(values)
    assert values.tolist() == [2, 4]


def test_what_is_compiled_is_kept_where_the_environment_says(tmp_path: Path) -> None:
    script = "from specdec.kernels import fused; print(fused.norm.stats.cache_hits.total())"
    hits = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]

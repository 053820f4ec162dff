"""Which files the weights of a model lie in: plain names beside its config, safetensors only."""

from __future__ import annotations

import json
from pathlib import Path

from specdec.models.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20


def weight_files(directory: Path) -> set[str]:
    """Names of the files in a model directory that hold its weights, there or not.

    An index could name any file of the machine, or a pickled one, and transformers would read it.

    Raises:
        ModelError: the index is damaged, or names something else than safetensors beside it.
    """
    path = directory / INDEX_FILE
    if (directory / SINGLE_FILE).exists() or not path.exists():
        return {SINGLE_FILE}
    try:
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError(f"it has more than {_MAX_INDEX_BYTES} bytes")
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({type(error).__name__}); get an intact copy of it") from error
    for name in names:
        is_plain = isinstance(name, str) and Path(name).name == name and "\\" not in name and "\0" not in name
        if not is_plain or not name.endswith(".safetensors"):
            raise ModelError(
                f"{path} names a file that is not a .safetensors file beside it, and nothing else is ever read; "
                "get an intact copy of the model"
            )
    if not names:
        raise ModelError(f"{path} names no file; get an intact copy of it")
    return names

"""From the name of a model to a directory that has it in transformers' layout."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specdec.models import cache
from specdec.models.catalog import CATALOG, EmbeddedModel
from specdec.models.errors import ModelError
from specdec.models.fetch import fetch_gguf
from specdec.models.gguf import convert, converted_directory, entry_key, make_converted_directory
from specdec.models.progress import Report

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def find_model(name: str) -> Path | None:
    """Where a model lies, ready to be loaded; None if it is still to be fetched or converted. Asks no network.

    Args:
        name: as for `provide_model`.

    Raises:
        ModelError: the name cannot mean a model.
    """
    if name in CATALOG:
        return cache.entry_directory(_embedded_key(CATALOG[name]))
    path = Path(os.path.expanduser(name))
    if path.suffix == ".gguf":
        return converted_directory(path)
    if name and path.is_dir():
        return path
    _check_hub_id(name)
    from specdec.models.hub import cached_hub_directory

    return cached_hub_directory(name)


def provide_model(name: str, report: Report) -> Path:
    """The directory of a model, fetched and converted first if need be.

    Args:
        name: of an embedded model, of a .gguf file, of a directory, or of a model on the Hugging Face hub; the first of
            these that it can mean is taken.
        report: told of slow steps.

    Raises:
        ModelError: the model cannot be had, with what to do.
    """
    if name in CATALOG:
        return _provide_embedded(CATALOG[name], report)
    path = Path(os.path.expanduser(name))
    if path.suffix == ".gguf":
        return make_converted_directory(path, report)
    if name and path.is_dir():
        return path
    _check_hub_id(name)
    from specdec.models.hub import hub_directory

    return hub_directory(name, report)


def _provide_embedded(model: EmbeddedModel, report: Report) -> Path:
    def fill(directory: Path) -> None:
        download = directory / "download"
        download.mkdir()
        gguf = fetch_gguf(model, download, report)
        convert(gguf, directory, report)
        gguf.unlink()
        download.rmdir()

    return cache.make_entry(_embedded_key(model), fill, room_bytes=model.gguf_bytes + model.converted_bytes)


def _embedded_key(model: EmbeddedModel) -> str:
    return entry_key(model.name, model.gguf_sha256)


def _check_hub_id(name: str) -> None:
    if not _HUB_ID.fullmatch(name):
        raise ModelError(
            f"{name!r} is neither a directory nor a hub id; known by name are {', '.join(CATALOG)}, "
            "other models by a path that exists or an id such as owner/name"
        )

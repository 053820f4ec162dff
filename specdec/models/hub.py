"""Models of the Hugging Face hub: safetensors and tokenizer files, kept in the hub's own cache (HF_HOME)."""

from __future__ import annotations

import errno
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from specdec.models import cache
from specdec.models.description import read_description
from specdec.models.errors import ModelError, first_line
from specdec.models.progress import Report, no_library_bars, watching_growth
from specdec.models.weight_index import INDEX_FILE, SINGLE_FILE, weight_files

_DESCRIPTIONS = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]
_WEIGHTS = [SINGLE_FILE, "model-*.safetensors", INDEX_FILE]
_PICKLED_WEIGHTS = ["*.bin", "*.pt", "*.pth", "*.ckpt"]
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def hub_directory(repo_id: str, report: Report) -> Path:
    """Snapshot of a model of the hub, fetched as far as it is not in the hub's cache.

    The small files come first, so that a model that cannot be served is refused before its weights are fetched.

    Raises:
        ModelError: no such model, no access, no network, no room, or a model that cannot be served.
    """
    try:
        with no_library_bars():
            described = Path(snapshot_download(repo_id, allow_patterns=_DESCRIPTIONS))
            read_description(described)
            if not _has_weights(described):
                _fetch_weights(repo_id, described, report)
    except ModelError:
        raise
    except Exception as error:
        raise _hub_error(repo_id, error) from error
    return described


def cached_hub_directory(repo_id: str) -> Path | None:
    """Snapshot of a model in the hub's cache with its weights, or None; asks nobody."""
    try:
        found = Path(snapshot_download(repo_id, allow_patterns=_DESCRIPTIONS, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return found if _has_weights(found) else None


def _has_weights(snapshot: Path) -> bool:
    return all((snapshot / name).exists() for name in weight_files(snapshot))


def _fetch_weights(repo_id: str, snapshot: Path, report: Report) -> None:
    # The same commit as the description, even if the repository has moved on.
    revision = snapshot.name
    plan = snapshot_download(repo_id, revision=revision, allow_patterns=_WEIGHTS, dry_run=True)
    if not plan:
        pickled = snapshot_download(repo_id, revision=revision, allow_patterns=_PICKLED_WEIGHTS, dry_run=True)
        kind = "pickled weights only, which are never read because they can run code" if pickled else "no weights"
        raise ModelError(f"{repo_id} has {kind}; choose a repository with safetensors")
    missing_bytes = sum(file.file_size or 0 for file in plan if file.will_download)
    cache.check_room(snapshot, missing_bytes, "HF_HOME")
    description = f"fetching {repo_id} ({cache.megabytes(missing_bytes)}) from the hub"
    blobs = snapshot.parent.parent / "blobs"
    with report(description, missing_bytes) as advance, watching_growth(blobs, advance):
        snapshot_download(repo_id, revision=revision, allow_patterns=_WEIGHTS)


def _hub_error(repo_id: str, error: Exception) -> ModelError:
    if isinstance(error, GatedRepoError):
        return ModelError(
            f"access to {repo_id} is gated; accept its terms on {constants.ENDPOINT}/{repo_id} "
            "and log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(
            f"the hub has no model {repo_id}, or it is private; check the name, or log in with `hf auth login`"
        )
    if isinstance(error, HFValidationError):
        return ModelError(f"{repo_id!r} is no hub id; give an id such as owner/name, or a path that exists")
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        return cache.storage_error(Path(constants.HF_HUB_CACHE), error, "HF_HOME")
    return ModelError(
        f"{repo_id} is not in the hub's cache and the hub cannot be reached ({first_line(error)}); "
        "connect to a network, or give a model that is already on disk by its path"
    )

"""The end of a run: the draft in its directory, measured as it lies there, with report and model card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from draft_service.trained_draft import load_trained_draft
from draft_service.training.model_card import model_card
from draft_service.training.report import measure_draft
from draft_service.training.storage import write_whole
from specdec.models.loading import LoadedModel


def publish(
    directory: Path,
    files: Mapping[str, bytes],
    training: Mapping[str, Any],
    *,
    target: LoadedModel,
    target_name: str,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    seed: int,
    tell: Callable[[str], None],
) -> None:
    """Write a draft, then load it as the draft service will, measure it, and write report.json and README.md.

    Args:
        directory: of the draft.
        files: from `draft_files`.
        training: facts of the run, for the report.
        target: to measure it with, as it is served.
        target_name: what the target is called.
        prompts: token ids of whole prompts, by category.
        seed: of the requests that are replayed.
        tell: told what is going on.

    Raises:
        ModelError: there is no room.
    """
    for name, content in files.items():
        write_whole(directory / name, content)
    draft = load_trained_draft(str(directory), target=target_name, device=str(target.model.device))
    report = {
        "training": training,
        "machine": _machine(target.model.device),
        "size_bytes": sum(map(len, files.values())),
        **measure_draft(draft, target, prompts, seed=seed, tell=tell),
    }
    write_whole(directory / "report.json", json.dumps(report, indent=2).encode())
    write_whole(directory / "README.md", model_card(report).encode())


def _machine(device: torch.device) -> dict[str, str | int]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}

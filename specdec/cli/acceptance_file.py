"""Acceptance as the benchmarks measured it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.planning.acceptance import Acceptance

_Condition = tuple[str, float]
"""Drafter and temperature."""


class AcceptanceFileError(Exception):
    """The file cannot be used; the message says why."""


def read_acceptance(path: Path, drafter: str | None = None, temperature: float | None = None) -> Acceptance:
    """By position, from the mean acceptance lengths in the JSON of `benchmarks.acceptance` or `benchmarks.speedup`.

    Args:
        path: of `--json-out`, or of the whole output, whose last line is the result.
        drafter: which one, if there are several.
        temperature: the same.

    Raises:
        AcceptanceFileError: the file is not such a result, has no drafts, or has several conditions that fit.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        found = _lengths(result)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AcceptanceFileError(
            f"{path}: no result of benchmarks.acceptance or benchmarks.speedup: {error}"
        ) from error
    fitting = {
        condition: lengths
        for condition, lengths in found.items()
        if drafter in (None, condition[0]) and temperature in (None, condition[1]) and lengths
    }
    if len(fitting) != 1:
        known = ", ".join(f"drafter {name} at temperature {value:g}" for name, value in (fitting or found)) or "none"
        raise AcceptanceFileError(
            f"{path}: {'several conditions fit' if fitting else 'no condition fits'}; there is {known}"
        )
    (lengths,) = fitting.values()
    try:
        return Acceptance.from_mean_lengths(lengths)
    except ValueError as error:
        raise AcceptanceFileError(f"{path}: {error}") from error


def _lengths(result: Mapping[str, Any]) -> dict[_Condition, dict[int, float]]:
    """Mean acceptance lengths by K, for each condition."""
    found: dict[_Condition, dict[int, float]] = {}
    if result["benchmark"] == "acceptance":
        for cell in result["cells"]:
            lengths = found.setdefault((str(cell["drafter"]), float(cell["temperature"])), {})
            _add(lengths, int(cell["num_draft_tokens"]), cell["overall"]["mean_acceptance_length"])
    elif result["benchmark"] == "speedup":
        settings = result["settings"]
        for name, drafter in result["drafters"].items():
            lengths = found.setdefault((str(name), float(settings["temperature"])), {})
            _add(lengths, int(settings["num_draft_tokens"]), drafter["overall"]["mean_acceptance_length"])
    else:
        raise ValueError(f"it is of {result['benchmark']!r}")
    return found


def _add(lengths: dict[int, float], num_draft_tokens: int, length: float | None) -> None:
    if num_draft_tokens and length is not None:
        lengths[num_draft_tokens] = float(length)

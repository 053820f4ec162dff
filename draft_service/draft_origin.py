"""What a trained draft says of itself: its target, and which of the target's layers it is made of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec.models.errors import ModelError, first_line

ORIGIN_FILE = "draft.json"
_FORMAT = 3


@dataclass(frozen=True)
class DraftOrigin:
    """Which target a draft was trained for, and from what it was made."""

    target: str
    """Name that the target was given by."""
    tokenizer_hash: str
    embeddings_sha256: str
    """Of the target's embeddings as they lie in its file; the draft does not work with any others."""
    layers: tuple[int, ...]
    """Of the target, that the draft is made of, or began with."""
    num_lower_layers: int
    """How many of them are below the ones that read states."""
    features: tuple[int, ...]
    """Hidden states of the target that the draft reads; none: it reads tokens alone."""
    seed: int

    def to_json(self) -> bytes:
        """For the draft's directory."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2).encode()


def read_origin(directory: Path) -> DraftOrigin:
    """That of a draft.

    Raises:
        ModelError: it cannot be read.
    """
    path = directory / ORIGIN_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        made_in = content.pop("format")
        if made_in == _FORMAT:
            lists = {name: tuple(content[name]) for name in ("layers", "features")}
            return DraftOrigin(**{**content, **lists})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({first_line(error)}); get an intact copy of the draft") from error
    raise ModelError(f"{path} has format {made_in} and this version reads {_FORMAT}; train the draft again")

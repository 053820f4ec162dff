"""Texts that the target wrote, with its laws: in memory, and on disk in shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from draft_service.training.storage import storage_errors, write_whole
from specdec.models.errors import ModelError

NUM_TOP = 64
"""Most probable tokens of each law that are kept."""
_NUM_UINT16 = 1 << 16
FAMILY = 3
"""Texts that build on each other: their numbers divided by this are the same."""
_HELD_OUT_EVERY = 32


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One text. The law of a position is the target's, at temperature 1, of the token there, given those before."""

    index: int
    """Its number; with the seed of the run it decides the text."""
    answer_start: int
    """Tokens before the answer."""
    token_ids: torch.Tensor  # (length,), int32
    law_positions: torch.Tensor  # (laws,), int32, increasing, from 1 on
    top_ids: torch.Tensor  # (laws, top), int32, most probable first
    top_logprobs: torch.Tensor  # (laws, top), float16
    features: torch.Tensor | None = None  # (length - 1, states, hidden_size), bfloat16: of every token but the last

    @property
    def is_held_out(self) -> bool:
        """Whether it is kept from training, for measuring. Decided by its number, so it never changes."""
        return self.index // FAMILY % _HELD_OUT_EVERY == 0


class SampleStore:
    """Shards in a directory. Each is complete; a killed run loses only the texts that were not in one yet.

    Args:
        directory: created with the first shard.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._num_shards = 0
        self.seconds = 0.0
        """Time that writing all shards took."""

    def load(self) -> list[Sample]:
        """All samples, in the order they were appended.

        Raises:
            ModelError: a shard cannot be read.
        """
        samples: list[Sample] = []
        paths = sorted(self._directory.glob("shard-*.safetensors"))
        for path in paths:
            tensors = _read(path)
            samples.extend(_unpack(tensors))
            self.seconds += float(tensors["seconds"])
        self._num_shards = 1 + int(paths[-1].stem.removeprefix("shard-")) if paths else 0
        return samples

    def append(self, samples: Sequence[Sample], seconds: float) -> list[Sample]:
        """Write one more shard.

        Args:
            samples: at least one; all with features or none.
            seconds: that writing them took.

        Returns:
            The same samples, in memory that the file stands behind: features of much text need not fit into memory.

        Raises:
            ModelError: there is no room for it.
        """
        path = self._directory / f"shard-{self._num_shards:05d}.safetensors"
        write_whole(path, save({**_pack(samples), "seconds": torch.tensor(seconds, dtype=torch.float64)}))
        self._num_shards += 1
        self.seconds += seconds
        return _unpack(_read(path))


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with storage_errors(path.parent):
            return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged; delete it and run the same command again") from error


def _pack(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    top_ids = torch.cat([sample.top_ids for sample in samples])
    narrow = int(top_ids.max()) < _NUM_UINT16
    features = [sample.features for sample in samples if sample.features is not None]
    return {
        **({"features": torch.cat(features)} if features else {}),
        "indexes": torch.tensor([sample.index for sample in samples]),
        "answer_starts": torch.tensor([sample.answer_start for sample in samples]),
        "lengths": torch.tensor([len(sample.token_ids) for sample in samples]),
        "num_laws": torch.tensor([len(sample.law_positions) for sample in samples]),
        "token_ids": torch.cat([sample.token_ids for sample in samples]),
        "law_positions": torch.cat([sample.law_positions for sample in samples]),
        "top_ids": top_ids.to(torch.uint16 if narrow else torch.int32),
        "top_logprobs": torch.cat([sample.top_logprobs for sample in samples]),
    }


def _unpack(tensors: dict[str, torch.Tensor]) -> list[Sample]:
    lengths, num_laws = tensors["lengths"].tolist(), tensors["num_laws"].tolist()
    features: Sequence[torch.Tensor | None] = [None] * len(lengths)
    if "features" in tensors:
        features = torch.split(tensors["features"], [length - 1 for length in lengths])
    return [
        Sample(*parts)
        for parts in zip(
            tensors["indexes"].tolist(),
            tensors["answer_starts"].tolist(),
            torch.split(tensors["token_ids"], lengths),
            torch.split(tensors["law_positions"], num_laws),
            torch.split(tensors["top_ids"].to(torch.int32), num_laws),
            torch.split(tensors["top_logprobs"], num_laws),
            features,
            strict=True,
        )
    ]

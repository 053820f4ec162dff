"""How long a forward pass takes on a device that is not there, from what the device and the model are.

A roofline (Williams, Waterman and Patterson 2009): the matrices and the attention each take as long as the slower of
reading and computing. A profile is a JSON file; those in `benchmarks/profiles` say where their numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ProfileError(Exception):
    """The file cannot be used; the message names it and what is wrong."""


class PassShape(NamedTuple):
    """What a forward pass is, as far as its duration depends on it."""

    num_sequences: int
    num_rows: int
    """New tokens of all sequences."""
    num_read_tokens: int
    """Tokens whose keys and values are read: contexts and new tokens of all sequences."""
    num_pairs: int
    """Pairs of a row and a token that it attends to."""

    @classmethod
    def of(cls, segments: Iterable[tuple[int, int]]) -> PassShape:
        """The shape of a pass over sequences, each given as (new tokens, tokens cached before)."""
        num_sequences = num_rows = num_read_tokens = num_pairs = 0
        for rows, context in segments:
            num_sequences += 1
            num_rows += rows
            num_read_tokens += context + rows
            num_pairs += rows * context + rows * (rows + 1) // 2
        return cls(num_sequences, num_rows, num_read_tokens, num_pairs)


class DeviceModel(BaseModel):
    """A model on a device. What is left at its default costs nothing, so `fixed_seconds` alone is a constant time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    fixed_seconds: float = Field(0.0, ge=0)
    """Of every pass: launching it, and what follows it."""
    seconds_per_sequence: float = Field(0.0, ge=0)
    num_parameters: float = Field(0.0, ge=0)
    """Weights that a pass reads; an embedding table is only looked up in."""
    bytes_per_parameter: float = Field(2.0, gt=0)
    kv_bytes_per_token: float = Field(0.0, ge=0)
    attention_flops_per_pair: float = Field(0.0, ge=0)
    """Of one row and one token that it attends to, in all layers."""
    bytes_per_second: float = Field(1.0, gt=0)
    """Peak memory bandwidth."""
    flops_per_second: float = Field(1.0, gt=0)
    """Peak of dense arithmetic in the weights' type."""
    reading_efficiency: float = Field(1.0, gt=0, le=1)
    """Share of the peak bandwidth that is reached."""
    computing_efficiency: float = Field(1.0, gt=0, le=1)
    """Share of the peak arithmetic that is reached."""

    def seconds(self, shape: PassShape) -> float:
        """Duration of a pass."""
        bandwidth = self.bytes_per_second * self.reading_efficiency
        arithmetic = self.flops_per_second * self.computing_efficiency
        matrices = max(
            self.num_parameters * self.bytes_per_parameter / bandwidth,
            2 * self.num_parameters * shape.num_rows / arithmetic,
        )
        attention = max(
            self.kv_bytes_per_token * shape.num_read_tokens / bandwidth,
            self.attention_flops_per_pair * shape.num_pairs / arithmetic,
        )
        return self.fixed_seconds + self.seconds_per_sequence * shape.num_sequences + matrices + attention


class DeviceProfile(BaseModel):
    """A target on its device, and its drafter on another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    notes: list[str] = []
    """Where the numbers come from, for people."""
    target: DeviceModel
    draft: DeviceModel
    draft_on_target_device: DeviceModel | None = None
    """The drafter beside the target, for the co-located side; None: as quick as on its own device."""
    acceptance: float | None = Field(None, ge=0, le=1)
    """Probability that a draft token is right, where the drafter is made up too; an assumption."""

    @property
    def colocated_draft(self) -> DeviceModel:
        """The drafter on the target's device."""
        return self.draft_on_target_device or self.draft


def read_profile(path: Path) -> DeviceProfile:
    """Read a profile.

    Raises:
        ProfileError: it is not there, or not a profile.
    """
    try:
        return DeviceProfile.model_validate_json(path.read_text(encoding="utf-8"), strict=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}" for problem in error.errors()
        )
        raise ProfileError(f"{path}: {problems}") from error

"""What a fuzzing run has seen, and what it must not see."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import grpc

INTERNAL = grpc.StatusCode.INTERNAL
_BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


class Found(AssertionError):
    """Something that no input may bring about."""


@dataclass
class Report:
    """Of one run."""

    name: str
    seed: int
    num_messages: int = 0
    num_healthy: int = 0
    """Requests beside them, each with exactly its own text."""
    codes: Counter[str] = field(default_factory=Counter)
    """How calls ended, and what was told of sequences."""
    answers: Counter[str] = field(default_factory=Counter)
    """What was not refused."""

    def status(self, code: grpc.StatusCode | int, message: str | None) -> None:
        """How a call ended, or what was told of a sequence.

        Raises:
            Found: it is a bug of the service.
        """
        if isinstance(code, int):
            found = next((each for each in grpc.StatusCode if each.value[0] == code), None)
            if found is None:
                raise Found(f"{self}: a status with the number {code}")
            code = found
        self.codes[code.name] += 1
        if code in _BUGS:
            raise Found(f"{self}: {code.name}: {message}")

    def __str__(self) -> str:
        seen = ", ".join(f"{name} {count}" for name, count in sorted((self.codes + self.answers).items()))
        return (
            f"{self.name}: seed {self.seed}, {self.num_messages} messages, {self.num_healthy} healthy requests beside "
            f"them ({seen})"
        )

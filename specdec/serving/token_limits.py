"""How much the holder of a token may ask for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from specdec.engine.turnover import Turnover
from specdec.errors import ResourceExhaustedError

_PERIODS = {"s": (1.0, "second"), "m": (60.0, "minute")}
_RATE = re.compile(r"([1-9][0-9]{0,11})/([sm])")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a second or a minute; all of them may come at once."""

    count: int
    period: str
    """One of s and m."""

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate such as 10/s or 600/m.

        Raises:
            ValueError: it is none.
        """
        found = _RATE.fullmatch(text)
        if found is None:
            raise ValueError("a rate is a number above 0 and a period, such as 10/s or 600/m")
        return cls(int(found[1]), found[2])

    @property
    def per_second(self) -> float:
        """How many a second."""
        return self.count / _PERIODS[self.period][0]

    def __str__(self) -> str:
        return f"{self.count} a {_PERIODS[self.period][1]}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one token; None: no limit."""

    requests: Rate | None = None
    concurrent: int | None = None
    tokens: Rate | None = None
    """Of prompts and generated."""


class Usage(Protocol):
    """Tokens that one request takes: a guess when it comes, and what it was when it has ended."""

    expected_tokens: int
    """The most that it is likely to take."""
    used_tokens: int
    """What it has taken, as far as it is known."""


class Quota:
    """What is left of the limits of one token.

    Args:
        limits: of the token.
        clock: seconds, for tests.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits = limits
        self._turnover = Turnover(clock)
        self._requests = _Bucket(limits.requests, clock)
        self._tokens = _Bucket(limits.tokens, clock)
        self.num_running = 0
        """Requests that are admitted and have not ended."""

    def change(self, limits: Limits) -> None:
        """Go on with other limits; what is used up stays used up."""
        if limits != self._limits:
            self._limits = limits
            self._requests.change(limits.requests)
            self._tokens.change(limits.tokens)

    @contextmanager
    def admitted(self, usage: Usage) -> Iterator[None]:
        """Around a request. Its expected tokens are taken now, and what it did not use is given back at its end.

        Raises:
            ResourceExhaustedError: a limit is reached; says when to try again, if that helps.
        """
        self._check(usage.expected_tokens)
        guest = object()
        taken = usage.expected_tokens
        self._requests.take(1)
        self._tokens.take(taken)
        self._turnover.begin(guest)
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self._turnover.end(guest)
            # More may have been used than was expected: then the rest is owed.
            self._tokens.take(usage.used_tokens - taken)

    def _check(self, expected_tokens: int) -> None:
        limits = self._limits
        if limits.concurrent is not None and self.num_running >= limits.concurrent:
            raise ResourceExhaustedError(
                f"{limits.concurrent} requests of this token are running, which is its limit; try again later",
                self._turnover.wait_seconds(0),
            )
        if limits.tokens is not None and expected_tokens > limits.tokens.count:
            raise ResourceExhaustedError(
                f"the request may take {expected_tokens} tokens and this token has {limits.tokens}; ask for fewer"
            )
        for bucket, amount, kind in ((self._requests, 1, "requests"), (self._tokens, expected_tokens, "tokens")):
            wait_seconds = bucket.wait_seconds(amount)
            if wait_seconds > 0:
                raise ResourceExhaustedError(
                    f"this token has used up its {kind}, {bucket.rate}; try again later", wait_seconds
                )


class _Bucket:
    """Fills at a rate up to what one period brings; may be below zero, which is owed."""

    def __init__(self, rate: Rate | None, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._clock = clock
        self._level = 0.0 if rate is None else float(rate.count)
        self._then = clock()

    def change(self, rate: Rate | None) -> None:
        self._fill()
        if self.rate is None and rate is not None:
            self._level = float(rate.count)
        self.rate = rate
        self._fill()

    def wait_seconds(self, amount: float) -> float:
        """Until so much is there; 0: it is."""
        if self.rate is None:
            return 0.0
        self._fill()
        return max(0.0, (amount - self._level) / self.rate.per_second)

    def take(self, amount: float) -> None:
        """Take so much; a negative amount is given back."""
        self._fill()
        self._level -= amount
        self._fill()

    def _fill(self) -> None:
        now = self._clock()
        if self.rate is not None:
            self._level = min(self._level + (now - self._then) * self.rate.per_second, float(self.rate.count))
        self._then = now

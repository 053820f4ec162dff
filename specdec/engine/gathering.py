"""Who is about to come back with its next round, and whether it pays to wait for it before the next pass."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

_MARGIN_SECONDS = 0.002
_RATE = 0.2
"""Weight of one value in an average."""

_CLEARLY = 0.9
"""What a wait may take of what it saves; some of those who are waited for are late."""


@dataclass(slots=True)
class _Wait:
    """For whom the next pass waits."""

    missing: set[object]
    until: float


class Gathering:
    """Keeps together sequences that are answered together.

    Their next rounds arrive a little apart, or a draft later. A pass that starts with the first of them makes all
    others wait for it, and the first one for the next: two passes where one would do, which cost what a pass costs
    whatever is in it once more. So the next pass waits for those who gain more by that than those lose who are there.
    Each is expected after the time it usually takes. Times are of one clock, in seconds.
    """

    def __init__(self) -> None:
        self._answered: dict[object, float] = {}
        self._usual_seconds: dict[object, float] = {}
        self._pass_seconds = self._each_seconds = 0.0
        self._wait: _Wait | None = None

    def passed(self, seconds: float, each_seconds: float = 0.0) -> None:
        """A forward pass is over. Those who are waited for next are chosen anew.

        Args:
            seconds: what it would have taken with nothing in it.
            each_seconds: what each sequence added.
        """
        rate = _RATE if self._pass_seconds else 1.0
        self._pass_seconds += rate * (seconds - self._pass_seconds)
        self._each_seconds += rate * (each_seconds - self._each_seconds)
        self._wait = None

    def answered(self, sequence: object, now: float) -> None:
        """A sequence has its answer and will come back."""
        self._answered[sequence] = now

    def returned(self, sequence: object, now: float) -> None:
        """It has."""
        answered = self._answered.pop(sequence, None)
        if answered is not None:
            usual = self._usual_seconds.get(sequence)
            seconds = now - answered
            self._usual_seconds[sequence] = seconds if usual is None else usual + _RATE * (seconds - usual)
        if self._wait is not None:
            self._wait.missing.discard(sequence)

    def left(self, sequence: object) -> None:
        """It will not; harmless if it was never here."""
        self._answered.pop(sequence, None)
        self._usual_seconds.pop(sequence, None)
        if self._wait is not None:
            self._wait.missing.discard(sequence)

    def wait_seconds(self, now: float, num_waiting: int) -> float:
        """How long those who are missing are waited for, at most, from now on.

        Args:
            now: the time.
            num_waiting: sequences that are there.
        """
        if self._wait is None:
            self._wait = self._choose(now, num_waiting)
        if not self._wait.missing or now >= self._wait.until:
            self._wait.missing.clear()
            return 0.0
        return self._wait.until - now

    def _choose(self, now: float, num_waiting: int) -> _Wait:
        """The wait by which all sequences together lose least time; for nobody, if that is it."""
        expected = sorted(
            (self._answered[sequence] + usual, usual, number, sequence)
            for number, (sequence, usual) in enumerate(self._usual_seconds.items())
            if sequence in self._answered
            # Who is later than twice its time has other things to do.
            and now - _MARGIN_SECONDS < self._answered[sequence] + 2 * usual
        )
        best, best_gain, until = 0, 0.0, now
        gain = there = 0.0
        for count, (moment, *_) in enumerate(expected, start=1):
            arrival = max(moment, now)
            # Not to come when a pass has just begun; and everybody who is there waits until this one is.
            gain += self._pass_seconds - (arrival - now)
            there = there + arrival - now
            lost = num_waiting * (arrival - now + count * self._each_seconds) + count * (arrival - now) - there
            if gain - lost > best_gain:
                best, best_gain = count, gain - lost
        if best < len(expected) and self._is_one_group_quicker(usual for _, usual, _, _ in expected):
            best = len(expected)
        for moment, usual, _, _ in expected[:best]:
            until = max(until, moment + usual + _MARGIN_SECONDS)
        return _Wait({sequence for *_, sequence in expected[:best]}, until)

    def _is_one_group_quicker(self, missing_seconds: Iterable[float]) -> bool:
        """Whether those who are there and those who are missing would do better together than in turns, round by round.

        In turns both wait for the other's pass, and so for what a pass takes with nothing in it once more; together the
        target waits until the last of them is back. They do not go on in turns if those who are there are back sooner
        than the others: after the next pass it is them who are waited for.

        Args:
            missing_seconds: what those who are missing usually take.
        """
        there = [usual for sequence, usual in self._usual_seconds.items() if sequence not in self._answered]
        longest = max(missing_seconds)
        return bool(there) and longest < min(_CLEARLY * self._pass_seconds, statistics.median(there) + _MARGIN_SECONDS)

"""Who is about to come back with its next round, and whether it pays to wait for it before the next pass."""

from __future__ import annotations

_LARGEST_SHARE = 0.5
"""Of the duration of a pass: no longer is anybody waited for."""
_MARGIN_SECONDS = 0.001
_RATE = 0.2
"""Weight of one value in an average."""


class Gathering:
    """Keeps together sequences that are answered together.

    Their next rounds arrive a little apart. A pass that starts with the first of them makes all others wait for it, and
    the first one for the next: two passes where one would do. A sequence that comes back within a fraction of a pass is
    therefore waited for, as long as it usually takes; one that drafts, or whose client is slow, is not.
    """

    def __init__(self) -> None:
        self._answered: dict[object, float] = {}
        self._usual_seconds: dict[object, float] = {}
        self._due: dict[object, float] = {}
        self._pass_seconds = 0.0

    def passed(self, seconds: float) -> None:
        """A forward pass took so long."""
        self._pass_seconds += (_RATE if self._pass_seconds else 1.0) * (seconds - self._pass_seconds)

    def answered(self, sequence: object, now: float) -> None:
        """A sequence has its answer and will come back. Times are of one clock, in seconds."""
        self._answered[sequence] = now
        usual = self._usual_seconds.get(sequence)
        if usual is None:
            return
        patience = 2 * usual + _MARGIN_SECONDS
        if patience <= _LARGEST_SHARE * self._pass_seconds:
            self._due[sequence] = now + patience

    def returned(self, sequence: object, now: float) -> None:
        """It has."""
        self._due.pop(sequence, None)
        answered = self._answered.pop(sequence, None)
        if answered is not None:
            usual = self._usual_seconds.get(sequence)
            seconds = now - answered
            self._usual_seconds[sequence] = seconds if usual is None else usual + _RATE * (seconds - usual)

    def left(self, sequence: object) -> None:
        """It will not; harmless if it was never here."""
        for times in (self._due, self._answered, self._usual_seconds):
            times.pop(sequence, None)

    def wait_seconds(self, now: float) -> float:
        """How long those who are missing are waited for, at most, from now on."""
        if not self._due:
            return 0.0
        wait = max(self._due.values()) - now
        if wait <= 0:
            self._due.clear()
        return max(wait, 0.0)

"""Whether a prompt gets the same text whatever the load."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.measuring.closed_loop import RequestRecord


class OutputCheck:
    """Compares every output with the longest one seen of its prompt, as far as both go: loads cut requests off."""

    def __init__(self) -> None:
        self._longest: dict[int, list[int]] = {}
        self.num_compared = 0
        self.num_differing = 0

    def add(self, records: Iterable[RequestRecord]) -> None:
        """Compare what these requests wrote."""
        for record in records:
            if not record.token_ids:
                continue
            known = self._longest.setdefault(record.prompt, record.token_ids)
            if known is record.token_ids:
                continue
            self.num_compared += 1
            length = min(len(known), len(record.token_ids))
            self.num_differing += known[:length] != record.token_ids[:length]
            if len(record.token_ids) > len(known):
                self._longest[record.prompt] = record.token_ids

"""What tenants were answered before, for drafts: bounded, and never shared between them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from draft_service.drafters.suffix_automaton import END, SuffixAutomaton

_MAX_ABSORBED_TOKENS = 256
"""Tokens taken in at a time, so that no round waits for a long output: about a millisecond."""


class TenantMemory:
    """Past outputs of each tenant, as automata.

    An automaton cannot forget, so a tenant has up to two of half its bound each: when the younger one is full, the
    older one is dropped whole. So at least the last half of the bound is always there. What comes in faster than it is
    taken in waits, up to another half; the oldest of it is lost first. None of this touches another tenant. If there
    are more tenants than the bound, the one that has not been asked for or added to for the longest time is forgotten.

    In all that is up to `max_tenants * max_tokens` tokens, of some 170 bytes each.

    Args:
        max_tokens: kept for each tenant; 0: nothing is kept.
        max_tenants: that something is kept for.
    """

    def __init__(self, *, max_tokens: int, max_tenants: int) -> None:
        self._half = max_tokens // 2
        self._max_tenants = max_tenants
        self._tenants: OrderedDict[bytes, _Outputs] = OrderedDict()

    def keep(self, tenant: bytes, token_ids: Sequence[int]) -> None:
        """Add an output.

        Args:
            tenant: whose it is; empty: nobody's, and nothing is kept.
            token_ids: of the output; the last of them if it is longer than what is kept.
        """
        if not tenant or not self._half or not token_ids:
            return
        outputs = self._tenants.get(tenant)
        if outputs is None:
            outputs = self._tenants[tenant] = _Outputs(self._half)
            if len(self._tenants) > self._max_tenants:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        outputs.waiting.extend(token_ids)
        # No match reaches from one output into the next.
        outputs.waiting.append(END)

    def recall(self, tenant: bytes) -> Sequence[SuffixAutomaton]:
        """The tenant's outputs, the younger ones first. They change with the next call only."""
        outputs = self._tenants.get(tenant)
        if outputs is None:
            return ()
        self._tenants.move_to_end(tenant)
        outputs.absorb()
        return outputs.automata


class _Outputs:
    """Of one tenant."""

    def __init__(self, half: int) -> None:
        self._half = half
        self.automata = [SuffixAutomaton()]
        self.waiting: deque[int] = deque(maxlen=half)

    def absorb(self) -> None:
        """Take in some of what waits."""
        for _ in range(min(len(self.waiting), _MAX_ABSORBED_TOKENS)):
            if self.automata[0].num_tokens >= self._half:
                self.automata = [SuffixAutomaton(), self.automata[0]]
            self.automata[0].append(self.waiting.popleft())

"""Every run of tokens of a text, with how often it occurred and how it went on, kept up as the text grows."""

from __future__ import annotations

from array import array

END = -2
"""Stands in a text behind a part that goes no further. It is no token; those are not negative."""
_ROOT = 0
_NONE = -1
_MAX_COUNTED_STATES = 64
"""Counts are kept up for so many of the states that end at a token, the longest first. Text has a handful of them; only
one that repeats a phrase over and over has more, and there the short ones that are left out do not matter."""


class SuffixAutomaton:
    """The smallest automaton that knows every run of a text, built as the text comes.

    Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text". A state stands for all runs that
    end at the same places of the text; the longest of them gives its length. Its link leads to the state of the longest
    suffix of these that ends at more places. Beside that a state has the number of its places, and the state that the
    text went on to most often behind it, the latest of several.

    A token costs O(1), amortised over the text: some 5 microseconds and 150 bytes.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._last = _ROOT
        self._length = array("i")
        self._link = array("i")
        self._count = array("i")
        self._num_continued = array("i")
        self._likeliest = array("i")
        self._token = array("q")  # by which the state is entered
        # Most states go on with one token only, so that one has a place of its own; the others are in `_more`.
        self._first_token = array("q")
        self._first_next = array("i")
        self._more: dict[int, dict[int, int]] = {}
        self._add(0, _NONE)

    def append(self, token: int) -> None:
        """The text goes on with a token, or `END`."""
        self.num_tokens += 1
        before = self._last
        self._last = new = self._add(self._length[before] + 1, token)
        state, known = before, _NONE
        while state != _NONE and (known := self._next(state, token)) == _NONE:
            self._lead(state, token, new)
            state = self._link[state]
        if state == _NONE:
            self._link[new] = _ROOT
        elif self._length[known] == self._length[state] + 1:
            self._link[new] = known
        else:
            self._link[new] = self._split(known, state)
        if token != END:
            self._count_behind(before, token)

    def longest_repeat(self) -> tuple[int, int]:
        """State and length of the longest suffix of the text that occurred in it before; length 0: there is none."""
        return self.shorter(self._last)

    def shorter(self, state: int) -> tuple[int, int]:
        """State and length of the longest suffix of a state's runs that ends at more places; length 0: none does."""
        state = max(self._link[state], _ROOT)
        return state, self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """State and length of the longest run known here that ends another text.

        Args:
            state: the same before the last token of that text.
            length: the same.
            token: the last token of that text.
        """
        while (following := self._next(state, token)) == _NONE:
            if state == _ROOT:
                return _ROOT, 0
            state, length = self.shorter(state)
        return following, length + 1

    def likeliest(self, state: int) -> tuple[int, int]:
        """The token that came most often behind a state's runs, the latest of several: the state then, and the token.

        Both are -1 if nothing came.
        """
        following = self._likeliest[state]
        return (following, self._token[following]) if following != _NONE else (_NONE, _NONE)

    def counts(self, state: int) -> tuple[int, int]:
        """How often the likeliest token came behind a state's runs, and how often any token did."""
        following = self._likeliest[state]
        return (self._count[following] if following != _NONE else 0, self._num_continued[state])

    def _add(self, length: int, token: int) -> int:
        self._length.append(length)
        self._token.append(token)
        self._count.append(0)
        self._num_continued.append(0)
        for column in (self._link, self._likeliest, self._first_token, self._first_next):
            column.append(_NONE)
        return len(self._length) - 1

    def _next(self, state: int, token: int) -> int:
        """The state behind a state; -1 if the text never went on so."""
        if self._first_token[state] == token:
            return self._first_next[state]
        more = self._more.get(state)
        return _NONE if more is None else more.get(token, _NONE)

    def _lead(self, state: int, token: int, following: int) -> None:
        if self._first_token[state] in (token, _NONE):
            self._first_token[state], self._first_next[state] = token, following
        else:
            self._more.setdefault(state, {})[token] = following

    def _split(self, whole: int, state: int) -> int:
        """Give the shorter runs of a state, which now end at one place more, a state of their own.

        Args:
            whole: the state.
            state: the one of those before it, on the way up the links, whose longest run leads to the longest of them.
        """
        token = self._token[whole]
        part = self._add(self._length[state] + 1, token)
        columns = (self._link, self._count, self._num_continued, self._likeliest, self._first_token, self._first_next)
        for column in columns:
            column[part] = column[whole]
        if whole in self._more:
            self._more[part] = self._more[whole].copy()
        self._link[whole] = part
        while state != _NONE and self._next(state, token) == whole:
            self._lead(state, token, part)
            if self._likeliest[state] == whole:
                self._likeliest[state] = part
            state = self._link[state]
        return part

    def _count_behind(self, state: int, token: int) -> None:
        """Count a token behind every run that ended the text before it; `state` is that of the longest."""
        count, counted = self._count, _NONE
        for _ in range(_MAX_COUNTED_STATES):
            if state == _NONE:
                return
            self._num_continued[state] += 1
            following = self._next(state, token)
            if following != counted:
                count[following] += 1
                counted = following
            best = self._likeliest[state]
            if best == _NONE or count[following] >= count[best]:
                self._likeliest[state] = following
            state = self._link[state]

"""The automaton against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from draft_service.drafters import suffix_automaton
from draft_service.drafters.suffix_automaton import END, SuffixAutomaton

TEXTS = st.lists(st.sampled_from([0, 1, 2, 3, END]), max_size=40)


def automaton_of(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


def ends(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """Where the run ends in the text."""
    length = len(run)
    return [end for end in range(length, len(text) + 1) if list(text[end - length : end]) == list(run)]


def longest_known_suffix(text: Sequence[int], other: Sequence[int]) -> int:
    """How much of the end of the other text occurs in the text."""
    return max(length for length in range(len(other) + 1) if ends(text, other[len(other) - length :]))


def longest_repeated_suffix(text: Sequence[int]) -> int:
    return max((length for length in range(len(text)) if len(ends(text, text[len(text) - length :])) > 1), default=0)


def continuations(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """What came behind the run, in order."""
    return [text[end] for end in ends(text, run) if end < len(text) and text[end] != END]


def most_frequent(tokens: Sequence[int]) -> int:
    """The latest of the most frequent ones; -1 if there is none."""
    best = max((tokens.count(token) for token in tokens), default=0)
    return next((token for token in reversed(tokens) if tokens.count(token) == best), -1)


def state_of(automaton: SuffixAutomaton, run: Sequence[int]) -> int:
    """The state of a run that the text has."""
    state, length = 0, 0
    for token in run:
        state, length = automaton.step(state, length, token)
    assert length == len(run)
    return state


@given(TEXTS)
def test_every_run_is_known_with_what_came_behind_it(text: list[int]) -> None:
    automaton = automaton_of(text)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            run = text[start:end]
            found = continuations(text, run)
            state = state_of(automaton, run)
            likeliest = most_frequent(found)
            assert automaton.likeliest(state)[1] == likeliest
            assert automaton.counts(state) == (found.count(likeliest), len(found))
            if found:
                assert automaton.likeliest(state)[0] == state_of(automaton, [*run, likeliest])


@given(TEXTS)
def test_the_end_of_the_text_is_matched_with_what_came_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for number, token in enumerate(text, start=1):
        automaton.append(token)
        assert automaton.num_tokens == number
        state, length = automaton.longest_repeat()
        assert length == longest_repeated_suffix(text[:number])
        assert state == state_of(automaton, text[number - length : number])


@given(TEXTS, TEXTS)
def test_another_text_is_matched_as_it_grows(text: list[int], other: list[int]) -> None:
    automaton = automaton_of(text)
    state, length = 0, 0
    for number, token in enumerate(other, start=1):
        state, length = automaton.step(state, length, token)
        assert length == longest_known_suffix(text, other[:number])
        assert state == state_of(automaton, other[number - length : number])


@given(TEXTS)
def test_a_shorter_run_ends_at_more_places(text: list[int]) -> None:
    automaton = automaton_of(text)
    state, length = state_of(automaton, text), len(text)
    while length:
        state, shorter = automaton.shorter(state)
        assert shorter < length
        before, after = ends(text, text[len(text) - length :]), ends(text, text[len(text) - shorter :])
        assert set(after) > set(before)
        # None in between does.
        assert length == shorter + 1 or ends(text, text[len(text) - shorter - 1 :]) == before
        length = shorter
    assert state == 0


@given(st.lists(st.integers(0, 2), min_size=3, max_size=200))
def test_it_stays_small(text: list[int]) -> None:
    automaton = automaton_of(text)
    assert len(automaton._length) < 2 * len(text)
    num_transitions = sum(token != -1 for token in automaton._first_token) + sum(map(len, automaton._more.values()))
    assert num_transitions < 3 * len(text)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_text_that_repeats_itself_costs_no_more_than_its_length(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    num_looked_up = 0
    look_up = SuffixAutomaton._next

    def counted(self: SuffixAutomaton, state: int, token: int) -> int:
        nonlocal num_looked_up
        num_looked_up += 1
        return look_up(self, state, token)

    monkeypatch.setattr(SuffixAutomaton, "_next", counted)
    num_tokens = 3000
    automaton = automaton_of([position % period for position in range(num_tokens)])
    assert num_looked_up < num_tokens * (suffix_automaton._MAX_COUNTED_STATES + 5)
    state, length = automaton.longest_repeat()
    assert length == num_tokens - period
    assert automaton.likeliest(state)[1] == num_tokens % period

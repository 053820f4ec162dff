from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from orchestrator.stops import StopStringScanner


def scan(stop_strings: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None]:
    """What each piece shows, the held rest last, and the stop string that was found."""
    scanner = StopStringScanner(stop_strings)
    shown = []
    for piece in pieces:
        text, stop_string = scanner.push(piece)
        shown.append(text)
        if stop_string is not None:
            assert scanner.flush() == ""
            return shown, stop_string
    return [*shown, scanner.flush()], None


def oracle(stop_strings: Sequence[str], text: str) -> tuple[str, str | None]:
    """Sees one character at a time: the text up to the first stop string, and that one."""
    for end in range(1, len(text) + 1):
        complete = [stop_string for stop_string in stop_strings if text[:end].endswith(stop_string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def must_hold(stop_strings: Sequence[str], text: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop string."""
    beginnings = (stop_string[:length] for stop_string in stop_strings for length in range(len(stop_string)))
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


few_letters = st.text(alphabet="ab", min_size=1, max_size=5)
# Stop strings that overlap, contain one another or begin alike are then the rule, as are texts that almost hold them.
stop_string_lists = st.lists(few_letters, max_size=4)
pieces_lists = st.lists(st.text(alphabet="abc", max_size=4), max_size=8)


@settings(max_examples=500)
@given(stop_string_lists, pieces_lists)
@example(["ab", "abab"], ["ab"])
@example(["abab", "ba"], ["abab"])
@example(["aab"], ["aa", "ab"])
@example(["b", "ab"], ["a", "b"])
def test_finds_what_one_character_at_a_time_finds(stop_strings: list[str], pieces: list[str]) -> None:
    shown, stop_string = scan(stop_strings, pieces)
    assert ("".join(shown), stop_string) == oracle(stop_strings, "".join(pieces))


@settings(max_examples=300)
@given(stop_string_lists, pieces_lists)
def test_holds_only_what_may_begin_a_stop_string(stop_strings: list[str], pieces: list[str]) -> None:
    scanner = StopStringScanner(stop_strings)
    text = shown = ""
    for piece in pieces:
        news, stop_string = scanner.push(piece)
        if stop_string is not None:
            return
        text, shown = text + piece, shown + news
        assert shown == text[: len(text) - must_hold(stop_strings, text)]


@pytest.mark.parametrize("text", ["", "a\nUser", "\nUser:", "x\nUser: y", "\nUs\nUser:", "aaaabaaab", "\n\n\nUser::"])
@pytest.mark.parametrize("stop_strings", [["\nUser:"], ["\nUser:", "\nUs\n"], ["aaab"], ["User", "User:", "ser"]])
def test_every_cut_gives_the_same(stop_strings: list[str], text: str) -> None:
    expected = oracle(stop_strings, text)
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            shown, stop_string = scan(stop_strings, [text[:first], text[first:second], text[second:]])
            assert ("".join(shown), stop_string) == expected


def test_a_stop_string_over_several_rounds() -> None:
    """B16."""
    assert scan(["\nUser:"], ["Hi\nUs", "er", ":x"]) == (["Hi", "", ""], "\nUser:")
    assert scan(["\nUser:"], ["Hi\nUs", "e!"]) == (["Hi", "\nUse!", ""], None)
    assert scan(["\nUser:"], ["Hi\nUs"]) == (["Hi", "\nUs"], None)


def test_of_several_complete_at_once_the_longest_is_named() -> None:
    assert scan(["c", "abc", "bc"], ["xabc"]) == (["x"], "abc")
    # One that begins another is complete before it.
    assert scan(["stopper", "stop"], ["a stopper"]) == (["a "], "stop")
    # The one that ends first counts, not the one that begins first.
    assert scan(["abcdef", "cd"], ["abcdef"]) == (["ab"], "cd")


def test_without_stop_strings_nothing_is_held() -> None:
    assert scan([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_the_same_stop_string_twice() -> None:
    assert scan(["ab", "ab"], ["a", "bc"]) == (["", ""], "ab")


def test_any_characters() -> None:
    assert scan(["\ufffd", "🔥🔥"], ["🔥", "a🔥", "🔥"]) == (["", "🔥a", ""], "🔥🔥")
    assert scan(["e\u0301"], ["e", "\u0301"]) == (["", ""], "e\u0301")


@pytest.mark.timeout(20)
def test_long_stop_strings_in_long_repeated_text_take_linear_time() -> None:
    stop_strings = ["a" * length + "b" for length in range(240, 256)]
    scanner = StopStringScanner(stop_strings)
    for _ in range(200):
        assert scanner.push("a" * 100).stop_string is None
    text, stop_string = scanner.push("b")
    assert (text, stop_string) == ("", "a" * 255 + "b")

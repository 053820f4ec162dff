"""Which replica has the beginning of a prompt."""

from __future__ import annotations

from orchestrator.replicas.affinity import PrefixMemory


def test_the_longest_beginning_counts_for_each_replica() -> None:
    prefixes = PrefixMemory()
    system = list(range(300))
    prefixes.note([*system, 1], b"", "a")
    prefixes.note([*system[:100], 7, 7], b"", "b")
    assert prefixes.find([*system, 2, 3], b"") == {"b": 64, "a": 256}
    assert prefixes.find([*system[:64], 9], b"") == {"b": 64}
    assert prefixes.find(system[:63], b"") == {}
    assert prefixes.find([5, *system], b"") == {}


def test_tenants_do_not_learn_of_each_other() -> None:
    prefixes = PrefixMemory()
    prefixes.note(list(range(64)), b"one", "a")
    assert prefixes.find(list(range(64)), b"one") == {"a": 64}
    assert prefixes.find(list(range(64)), b"") == {}
    assert prefixes.find(list(range(64)), b"two") == {}


def test_what_was_seen_longest_ago_is_forgotten_first() -> None:
    prefixes = PrefixMemory(most=2)
    first, second, third = ([number] * 64 for number in range(3))
    prefixes.note(first, b"", "a")
    prefixes.note(second, b"", "b")
    prefixes.note(first, b"", "a")
    prefixes.note(third, b"", "c")
    assert [prefixes.find(prompt, b"") for prompt in (first, second, third)] == [{"a": 64}, {}, {"c": 64}]

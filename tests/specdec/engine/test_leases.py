"""Leases: who was left alone for how long."""

from __future__ import annotations

from specdec.engine.leases import Leases


def test_a_lease_ends_unless_it_is_renewed() -> None:
    now = [0.0]
    leases: Leases[str] = Leases(10.0, lambda: now[0])
    leases.renew("a")
    now[0] = 4.0
    leases.renew("b")
    assert leases.expired() == []
    now[0] = 9.0
    leases.renew("a")
    now[0] = 14.0
    assert leases.expired() == ["b"]
    now[0] = 19.0
    assert leases.expired() == ["b", "a"]
    leases.renew("a", "b")
    assert leases.expired() == []
    now[0] = 29.0
    assert leases.expired() == ["a", "b"]
    leases.end("b")
    leases.end("b")
    leases.renew("a")
    assert leases.expired() == []
    assert len(leases) == 1

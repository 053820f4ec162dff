from collections import Counter

from tests.chaos.faults import Kind, plan_faults
from tests.chaos.member import Part

PARTS: list[Part] = ["target", "draft", "orchestrator"]


def test_a_seed_gives_the_same_faults() -> None:
    first, again, other = (plan_faults(50, seed, PARTS, 30, num_targets=2) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_all_kinds_come_to_all_parts_in_the_order_of_their_rounds() -> None:
    faults = plan_faults(400, 3, PARTS, 30, num_targets=2)
    assert [fault.number for fault in faults] == list(range(400))
    rounds = [fault.after_deltas for fault in faults]
    assert rounds == sorted(rounds)
    assert 20 < rounds[-1] / 400 < 40
    seen = Counter((fault.of, fault.kind) for fault in faults)
    kinds = set(Kind) - {Kind.CANCEL}
    assert set(seen) == {*((part, kind) for part in PARTS for kind in kinds), ("client", Kind.CANCEL)}


def test_a_target_alone_is_left_alone() -> None:
    faults = plan_faults(200, 3, PARTS, 30, num_targets=1)
    assert {fault.of for fault in faults} == {"draft", "orchestrator", "client"}


def test_faults_end() -> None:
    for fault in plan_faults(400, 4, PARTS, 30, num_targets=2):
        assert 0 <= fault.hold_seconds <= 4
        assert (fault.rtt_seconds > 0) == (fault.kind is Kind.SLOW_LINK)

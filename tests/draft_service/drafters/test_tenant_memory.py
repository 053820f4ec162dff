"""What is kept of each tenant, how much, and that nothing of one is found by another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from draft_service.drafters import tenant_memory
from draft_service.drafters.suffix_automaton import SuffixAutomaton
from draft_service.drafters.tenant_memory import TenantMemory

ANNE, BERT, CARL = b"a" * 32, b"b" * 32, b"c" * 32


@pytest.fixture
def memory() -> TenantMemory:
    return TenantMemory(max_tokens=1000, max_tenants=3)


def recall_all(memory: TenantMemory, tenant: bytes) -> Sequence[SuffixAutomaton]:
    """All that is kept, when everything has been taken in."""
    for _ in range(100):
        texts = memory.recall(tenant)
    return texts


def knows(memory: TenantMemory, tenant: bytes, token_ids: Sequence[int]) -> bool:
    """Whether the tenant's outputs have this run."""
    for text in recall_all(memory, tenant):
        state, length = 0, 0
        for token in token_ids:
            state, length = text.step(state, length, token)
        if length == len(token_ids):
            return True
    return False


def num_kept(memory: TenantMemory, tenant: bytes) -> int:
    return sum(text.num_tokens for text in recall_all(memory, tenant))


def test_an_output_is_found_again_by_its_tenant_only(memory: TenantMemory) -> None:
    memory.keep(ANNE, [1, 2, 3])
    memory.keep(BERT, [4, 5, 6])
    assert knows(memory, ANNE, [1, 2, 3])
    assert knows(memory, BERT, [4, 5, 6])
    for tenant, others in ((ANNE, [4, 5, 6]), (BERT, [1, 2, 3]), (CARL, [1, 2, 3, 4, 5, 6])):
        assert not any(knows(memory, tenant, [token]) for token in others)


def test_nobody_has_no_memory(memory: TenantMemory) -> None:
    memory.keep(b"", [1, 2, 3])
    assert memory.recall(b"") == ()
    assert memory._tenants == {}


def test_no_match_reaches_from_one_output_into_the_next(memory: TenantMemory) -> None:
    memory.keep(ANNE, [1, 2])
    memory.keep(ANNE, [3, 4])
    assert knows(memory, ANNE, [1, 2])
    assert knows(memory, ANNE, [3, 4])
    assert not knows(memory, ANNE, [2, 3])


def test_a_bound_of_0_keeps_nothing() -> None:
    memory = TenantMemory(max_tokens=0, max_tenants=3)
    memory.keep(ANNE, [1, 2, 3])
    assert memory.recall(ANNE) == ()


def test_nothing_is_kept_of_an_output_without_tokens(memory: TenantMemory) -> None:
    memory.keep(ANNE, [])
    assert memory._tenants == {}


def test_a_tenant_keeps_its_last_tokens_within_its_bound(memory: TenantMemory) -> None:
    fresh = itertools.count()
    outputs = []
    for _ in range(200):
        outputs.append(list(itertools.islice(fresh, 40)))
        memory.keep(ANNE, outputs[-1])
        assert num_kept(memory, ANNE) <= 1000
        # Half of the bound at least, less what the ends of the outputs take.
        for output in outputs[-12:]:
            assert any(knows(memory, ANNE, output[start : start + 20]) for start in (0, 20))
    assert not knows(memory, ANNE, outputs[-30][:1])


def test_of_a_long_output_the_end_is_kept(memory: TenantMemory) -> None:
    memory.keep(ANNE, range(10_000))
    assert knows(memory, ANNE, list(range(9_600, 10_000)))
    assert not knows(memory, ANNE, [9_400])
    assert num_kept(memory, ANNE) <= 1000


def test_a_flood_of_one_tenant_takes_nothing_from_another(memory: TenantMemory) -> None:
    memory.keep(BERT, range(400))
    for number in range(500):
        memory.keep(ANNE, [10_000 + number] * 700)
    assert knows(memory, BERT, list(range(400)))
    assert num_kept(memory, ANNE) <= 1000


def test_the_tenant_that_was_not_used_for_the_longest_time_is_forgotten(memory: TenantMemory) -> None:
    for tenant in (ANNE, BERT, CARL):
        memory.keep(tenant, [1, 2, 3])
    memory.recall(ANNE)
    memory.keep(BERT, [4])
    memory.keep(b"d" * 32, [1])
    assert memory.recall(CARL) == ()
    assert knows(memory, ANNE, [1, 2, 3])
    assert knows(memory, BERT, [1, 2, 3])
    # Asking for one that is not there makes no room for it.
    for number in range(10):
        memory.recall(bytes([number]) * 32)
    assert knows(memory, ANNE, [1, 2, 3])


def test_a_long_output_is_taken_in_bit_by_bit(memory: TenantMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_memory, "_MAX_ABSORBED_TOKENS", 10)
    memory.keep(ANNE, range(100))
    sizes = [sum(text.num_tokens for text in memory.recall(ANNE)) for _ in range(12)]
    assert sizes == [*range(10, 101, 10), 101, 101]


def test_whatever_happens_the_bounds_hold_and_nothing_crosses() -> None:
    source = random.Random(0)
    memory = TenantMemory(max_tokens=100, max_tenants=4)
    tenants = [bytes([number]) * 32 for number in range(8)]
    for _ in range(2000):
        number = source.randrange(len(tenants))
        # Each tenant has tokens of its own.
        output = [1000 * number + source.randrange(50) for _ in range(source.randrange(60))]
        memory.keep(tenants[number], output)
        number = source.randrange(len(tenants))
        texts = memory.recall(tenants[number])
        assert len(memory._tenants) <= 4
        assert sum(text.num_tokens for text in texts) <= 100
        assert {token // 1000 for text in texts for token in text._token if token >= 0} <= {number}
    assert all(len(outputs.waiting) <= 50 for outputs in memory._tenants.values())

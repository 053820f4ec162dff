from __future__ import annotations

import pytest

from orchestrator.token_tenant import bind_tenant
from specdec.errors import PermissionDeniedError
from specdec.serving.token_file import TokenEntry
from specdec.v1 import generation_pb2

ALICE = TokenEntry("alice", b"a", tenant="acme")
BOB = TokenEntry("bob", b"b")
ENTRIES = (ALICE, BOB)


@pytest.mark.parametrize(
    ("entry", "tenant", "expected"),
    [(ALICE, "", "acme"), (ALICE, "acme", "acme"), (BOB, "", ""), (BOB, "other", "other")],
)
def test_a_request_is_of_the_tokens_tenant(entry: TokenEntry, tenant: str, expected: str) -> None:
    request = generation_pb2.GenerateRequest(tenant=tenant)
    unary = generation_pb2.GenerateUnaryRequest(request=request)
    bind_tenant(request, entry, ENTRIES)
    bind_tenant(unary, entry, ENTRIES)
    assert request.tenant == unary.request.tenant == expected


@pytest.mark.parametrize(("entry", "tenant"), [(ALICE, "other"), (ALICE, "Acme"), (BOB, "acme")])
def test_another_tenant_is_refused_without_saying_whose_it_is(entry: TokenEntry, tenant: str) -> None:
    with pytest.raises(PermissionDeniedError) as refused:
        bind_tenant(generation_pb2.GenerateRequest(tenant=tenant), entry, ENTRIES)
    assert not {tenant, "alice", "acme"} & set(str(refused.value).split())


def test_calls_of_other_kinds_are_left_alone() -> None:
    bind_tenant(None, ALICE, ENTRIES)
